// Communication hooks on buckets of devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/ddp.hpp"
#include "support/device_model.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace device_hook_test {

struct Case {
    const char* hook;
    const char* options;
    double tolerance;
};

class DeviceHookTest : public DeviceTest,
                       public testing::WithParamInterface<std::tuple<const char*, Case>> {};

INSTANTIATE_TEST_SUITE_P(
    All, DeviceHookTest,
    testing::Combine(testing::Values("streams", "threads-plain", "shm", "tcp"),
                     testing::Values(Case{"allreduce", "", 1e-6}, Case{"fp16", "", 2e-3},
                                     Case{"bf16", "", 2e-2}, Case{"quantize_per_tensor", "", 2e-2},
                                     Case{"quantize", "", 2e-2}, Case{"topk", "ratio=1", 1e-5},
                                     Case{"fp16(topk)", "ratio=1", 2e-3},
                                     Case{"powersgd", "start=0,rank=4", 1e-4},
                                     Case{"post_local_sgd", "start=100", 1e-6})),
    [](const auto& test) {
        std::string name =
            std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param).hook;
        for (char& c : name)
            if (!isalnum(c)) c = '_';
        return name;
    });

TEST_P(DeviceHookTest, TheMeanIsThatOfTheHook) {
    const auto& [backend, hook] = GetParam();
    for (const bool view : {true, false}) {
        RankOptions ranks(2, backend);
        ranks.round_robin = view ? 2 : 0;
        on_ranks(ranks, [&, hook = hook](int rank, ddp_group* group) {
            auto options = ddp::Context::defaults();
            options.bucket_cap_bytes = 400;
            DeviceModel model(group, {64, 7, 300}, view, {rank}, options);
            model.context.use_hook(hook.hook, hook.options);
            model.context.commit();
            for (int step = 0; step < 3; ++step) {
                model.context.step_begin();
                for (int p : {2, 1, 0}) model.give(p, static_cast<float>(8 * rank + p + step));
                model.context.finalize_on(model.stream(0));
                for (int p : {2, 1, 0})
                    EXPECT_TRUE(model.holds(p, 4 + p + step, hook.tolerance * 100)) << hook.hook;
            }
        });
    }
}

TEST_F(DeviceTest, ChunksAreOfTheCpu) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        DeviceModel model(group, {64, 7}, true, {rank});
        model.context.use_hook("chunks");
        model.context.commit();
        const ddp::Error error = error_of([&] {
            model.context.step_begin();
            for (int p : {1, 0}) model.give(p, 1);
            model.context.finalize_on(model.stream(0));
        });
        EXPECT_EQ(error.status(), DDP_ERROR_UNSUPPORTED);
        EXPECT_THAT(error.what(), testing::HasSubstr("chunks: "));
        EXPECT_THAT(error.what(), testing::HasSubstr("CPU memory only"));
    });
}

// A function of the user's that works on the device: doubles, reduces, halves somewhere else.
class DeviceUserHookTest : public DeviceTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, DeviceUserHookTest, testing::Values("streams", "threads", "tcp"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(DeviceUserHookTest, ChainsStayInTheOrderOfTheStream) {
    on_ranks({2, GetParam()}, [&](int rank, ddp_group* group) {
        auto* elsewhere = static_cast<float*>(fake::allocate(rank, 4096));
        {
            DeviceModel model(group, {64, 7}, true, {rank});
            std::vector<void*> streams;
            model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
                void* stream = ddp_bucket_stream(bucket);
                streams.push_back(stream);
                auto* buffer = static_cast<float*>(ddp_bucket_buffer(bucket));
                const std::size_t count = ddp_bucket_count(bucket);
                EXPECT_EQ(ddp_bucket_device(bucket).index, rank);
                fake::launch(rank, stream, [buffer, count] {
                    for (std::size_t k = 0; k < count; ++k) fake::at<float>(buffer)[k] *= 2;
                });
                ddp_error* error = nullptr;
                ddp_work *work = nullptr, *out = nullptr;
                EXPECT_EQ(ddp_allreduce(g, nullptr, buffer, count, DDP_F32, DDP_SUM, &work, &error),
                          DDP_OK);
                struct Chain {
                    int rank;
                    void* stream;
                    float *from, *to;
                    std::size_t count;
                    ddp_bucket* bucket;
                };
                auto* chain = new Chain{rank, stream, buffer, elsewhere, count, bucket};
                const ddp_work_fn halve = [](void* data, ddp_work**, ddp_error** failure) {
                    const Chain c = *static_cast<Chain*>(data);
                    fake::launch(c.rank, c.stream, [c] {
                        for (std::size_t k = 0; k < c.count; ++k)
                            fake::at<float>(c.to)[k] = fake::at<float>(c.from)[k] / 4;
                    });
                    return ddp_bucket_set_buffer(c.bucket, c.to, DDP_F32, failure);
                };
                EXPECT_EQ(
                    ddp_work_then(
                        work, halve, chain, [](void* data) { delete static_cast<Chain*>(data); },
                        DDP_WORK_ANY_THREAD, &out, &error),
                    DDP_OK);
                ddp_work_free(work);
                return ddp::Work(out);
            });
            model.context.commit();
            for (int step = 0; step < 3; ++step) {
                model.context.step_begin();
                for (int p : {1, 0}) model.give(p, static_cast<float>(2 * rank + p));
                model.context.finalize_on(model.stream(0));
                for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, 1 + p));
            }
            for (void* stream : streams) EXPECT_NE(stream, nullptr);
            model.close();
        }
        fake::release(elsewhere);
    });
}

// A function after a hook finds its result in the bucket's own buffer, converted.
TEST_P(DeviceUserHookTest, AFunctionAfterAHookSeesTheResult) {
    on_ranks({2, GetParam()}, [&](int rank, ddp_group* group) {
        DeviceModel model(group, {64, 7}, false, {rank});
        model.context.use_hook("fp16");
        model.context.hook_then(
            [rank](ddp_group*, ddp_bucket* bucket) {
                auto* buffer = static_cast<float*>(ddp_bucket_buffer(bucket));
                fake::launch(rank, ddp_bucket_stream(bucket),
                             [buffer, count = ddp_bucket_count(bucket)] {
                                 for (std::size_t k = 0; k < count; ++k)
                                     fake::at<float>(buffer)[k] += 5;
                             });
            },
            DDP_WORK_ANY_THREAD);
        model.context.commit();
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            for (int p : {1, 0}) model.give(p, static_cast<float>(2 * rank + p));
            model.context.finalize_on(model.stream(0));
            for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, 6 + p));
        }
    });
}

TEST_P(DeviceUserHookTest, AWaitInsideTheHookIsForTheData) {
    on_ranks({2, GetParam()}, [&](int rank, ddp_group* group) {
        DeviceModel model(group, {64}, true, {rank});
        model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
            auto* buffer = static_cast<float*>(ddp_bucket_buffer(bucket));
            ddp_work* work = nullptr;
            EXPECT_EQ(ddp_allreduce(g, nullptr, buffer, ddp_bucket_count(bucket), DDP_F32, DDP_AVG,
                                    &work, nullptr),
                      DDP_OK);
            EXPECT_EQ(ddp_work_wait(work, 0, nullptr), DDP_OK);
            EXPECT_EQ(fake::at<float>(buffer)[1], 2);
            std::int32_t done = 0;
            EXPECT_EQ(ddp_work_test(work, &done, nullptr), DDP_OK);
            EXPECT_EQ(done, 1);
            ddp_work_free(work);
            return ddp::Work(nullptr);
        });
        model.context.commit();
        model.give(0, static_cast<float>(2 * rank));
        model.context.finalize();
        EXPECT_TRUE(model.holds(0, 1));
    });
}

using DeviceMemoryTest = DeviceTest;

TEST_F(DeviceMemoryTest, DeviceMemoryOutsideAHookIsRefused) {
    on_ranks({1, "threads"}, [&](int, ddp_group* group) {
        std::int32_t devices = 0;
        ASSERT_EQ(ddp_device_count(DDP_DEVICE_CUDA, &devices, nullptr), DDP_OK);
        void* memory = fake::allocate(0, 64);
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_allreduce(group, nullptr, memory, 4, DDP_F32, DDP_SUM, nullptr, &error),
                  DDP_ERROR_UNSUPPORTED);
        EXPECT_EQ(take_facts(error), Facts{DDP_ERROR_UNSUPPORTED});
        fake::release(memory);
    });
}

}  // namespace device_hook_test
