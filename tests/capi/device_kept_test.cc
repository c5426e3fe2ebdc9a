// The state of hooks on devices: in which memory it is, when buckets change and when states are
// saved and loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "ddp/ddp.hpp"
#include "hooks/state_file.h"
#include "support/device_model.h"
#include "support/ranks.h"

namespace device_kept_test {

using Values = std::vector<float>;

constexpr const char* kTwo = R"({"libddp_plan": 1, "buckets": [["p0"], ["p1"]]})";
constexpr const char* kTwoSwapped = R"({"libddp_plan": 1, "buckets": [["p1"], ["p0"]]})";

class DeviceKeptTest : public DeviceTest {};

void step(DeviceModel& model, int rank, int number) {
    model.context.step_begin();
    for (int p = model.count(); p-- > 0;) {
        Values values(model.size(p));
        for (std::size_t k = 0; k < values.size(); ++k)
            values[k] = static_cast<float>(
                (k * k + 7 * k + static_cast<std::size_t>(31 * p + 17 * rank + 5 * number)) % 101);
        if (model.device(p) < 0) {
            std::copy(values.begin(), values.end(), model.grad(p));
            model.context.grad_ready(p);
            continue;
        }
        fake::launch(model.device(p), model.stream(p), [values, memory = model.grad(p)] {
            std::copy(values.begin(), values.end(), fake::at<float>(memory));
        });
        model.context.grad_ready_on(p, model.stream(p));
    }
    model.finalize();
}

std::vector<Values> gradients(DeviceModel& model) {
    std::vector<Values> all;
    for (int p = 0; p < model.count(); ++p) all.push_back(model.read(p));
    return all;
}

// Two buckets, each on another device or the CPU, change their numbers.
std::vector<Values> after_swapping(ddp_group* group, int rank, std::vector<int> devices, bool warm,
                                   bool swap) {
    DeviceModel model(group, {900, 900}, false, std::move(devices));
    model.context.use_hook("batched_powersgd",
                           warm ? "rank=2,start=0" : "rank=2,start=0,warm_start=0");
    model.context.adopt_plan(kTwo);
    model.context.commit();
    step(model, rank, 0);
    if (swap) model.context.adopt_plan(kTwoSwapped);
    step(model, rank, 1);
    return gradients(model);
}

// Errors go with their parameters; the Q of another device's bucket is of no use.
TEST_F(DeviceKeptTest, ABucketThatComesToAnotherDeviceDrawsItsQAnew) {
    for (const char* backend : {"shm", "streams"})
        on_ranks({2, backend}, [&](int rank, ddp_group* group) {
            const std::vector<int> devices{rank, 1 - rank};
            EXPECT_EQ(after_swapping(group, rank, devices, true, true),
                      after_swapping(group, rank, devices, false, true));
            EXPECT_NE(after_swapping(group, rank, devices, true, false),
                      after_swapping(group, rank, devices, false, false))
                << "a Q that stays is used";
        });
}

TEST_F(DeviceKeptTest, ABucketMayChangeBetweenDeviceAndCpu) {
    on_ranks({2, "shm"}, [&](int rank, ddp_group* group) {
        const auto swapped = after_swapping(group, rank, {rank, -1}, true, true);
        EXPECT_EQ(swapped[1], after_swapping(group, rank, {rank, -1}, false, true)[1])
            << "drawn anew on the CPU";
        for (const Values& values : swapped)
            for (const float x : values) EXPECT_TRUE(x > -1e3 && x < 1e3);
    });
}

struct Hook {
    const char* name;
    const char* options;
};
const Hook kHooks[] = {{"batched_powersgd", "rank=2,start=0"},
                       {"powersgd", "rank=2,start=0,min_rate=0"},
                       {"topk", "min_elements=0"},
                       {"quantize", ""},
                       {"quantize_per_tensor", ""},
                       {"fp16", ""},
                       {"fp16(batched_powersgd)", "rank=2,start=0"}};

// Bytes that a context with these plans, one after another, has in the end on its device.
std::size_t bytes_after(ddp_group* group, const Hook& hook, const std::vector<const char*>& plans) {
    DeviceModel model(group, {900, 900, 400, 300}, false, {0}, ddp::Context::defaults(), 10);
    model.context.use_hook(hook.name, hook.options);
    for (std::size_t i = 0; i < plans.size(); ++i) {
        model.context.adopt_plan(plans[i]);
        if (i == 0) model.context.commit();
        for (int s = 0; s < 2; ++s) step(model, 0, s);
    }
    EXPECT_TRUE(fake::settle());
    return fake::live_bytes();
}

TEST_F(DeviceKeptTest, BucketsThatAreNoMoreKeepNothing) {
    constexpr const char* many =
        R"({"libddp_plan": 1, "buckets": [["p0"], ["p1"], ["p2"], ["p3"]]})";
    constexpr const char* few = R"({"libddp_plan": 1, "buckets": [["p1", "p3"], ["p0", "p2"]]})";
    for (const Hook& hook : kHooks) {
        SCOPED_TRACE(hook.name);
        on_ranks({1, "threads"}, [&](int, ddp_group* group) {
            EXPECT_EQ(bytes_after(group, hook, {many, few}), bytes_after(group, hook, {few}));
            EXPECT_EQ(bytes_after(group, hook, {few, many}), bytes_after(group, hook, {many}));
        });
    }
}

// Whichever allocation of the rebuild is the first for which there is no room.
TEST_F(DeviceKeptTest, ADeviceThatIsFullWhenBucketsChangeEndsTheGroupEverywhere) {
    std::atomic<int> failed{1};
    for (long allocations = 0; failed > 0; ++allocations) {
        SCOPED_TRACE(allocations);
        failed = 0;
        on_ranks({2, "shm"}, [&](int rank, ddp_group* group) {
            DeviceModel model(group, {900, 900, 400, 300}, false, {rank});
            model.context.use_hook("batched_powersgd", "rank=2,start=0");
            model.context.adopt_plan(
                R"({"libddp_plan": 1, "buckets": [["p0", "p1"], ["p2", "p3"]]})");
            model.context.commit();
            step(model, rank, 0);
            model.context.adopt_plan(
                R"({"libddp_plan": 1, "buckets": [["p0", "p2"], ["p1"], ["p3"]]})");
            if (rank == 0) fake::set_allocations_left(0, allocations);
            try {
                step(model, rank, 1);
            } catch (const ddp::Error& error) {
                ++failed;
                EXPECT_EQ(error.status(), DDP_ERROR_OUT_OF_MEMORY) << error.what();
                EXPECT_EQ(error.rank(), 0) << error.what();
            }
            if (rank == 0) fake::set_allocations_left(0, -1);
        });
        EXPECT_NE(failed, 1) << "every rank, or none";
    }
}

// The state of a parameter that is no longer trained has only that parameter's size, be it the
// bucket's first or its last.
class DeviceFrozenTest : public DeviceTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(All, DeviceFrozenTest, testing::Values(0, 1));

TEST_P(DeviceFrozenTest, AFrozenParameterKeepsItsOwnErrorOnly) {
    constexpr const char* one = R"({"libddp_plan": 1, "buckets": [["p0", "p1"]]})";
    const int frozen = GetParam(), trained = 1 - frozen;
    const std::string key = "error:p" + std::to_string(frozen);
    on_ranks({1, "threads"}, [&](int, ddp_group* group) {
        DeviceModel model(group,
                          frozen == 0 ? std::vector<std::int64_t>{64, 10'000}
                                      : std::vector<std::int64_t>{10'000, 64},
                          false, {0});
        model.context.use_hook("batched_powersgd", "rank=1,start=0");
        model.context.adopt_plan(one);
        model.context.commit();
        step(model, 0, 0);
        const StateFile before = array_of(model.context.save_hook_state(), key);
        ASSERT_FALSE(before.empty());
        const auto bytes = [] {
            EXPECT_TRUE(fake::settle());
            return fake::live_bytes();
        };
        const std::size_t together = bytes();
        model.context.set_frozen({frozen}, true);
        model.context.step_begin();
        fake::launch(0, model.stream(trained),
                     [memory = model.grad(trained)] { fake::at<float>(memory)[7] = 3; });
        model.context.grad_ready_on(trained, model.stream(trained));
        model.finalize();
        // Two more buckets' worth of alignment at most; a second block of errors would be 40,000
        // bytes.
        EXPECT_LT(bytes(), together + 4096);
        EXPECT_EQ(array_of(model.context.save_hook_state(), key), before);
    });
}

// Everything goes through one piece of pinned memory, and none is left.
TEST_F(DeviceKeptTest, AStateTakesPinnedMemoryOnce) {
    for (const Hook& hook : {kHooks[0], kHooks[1], kHooks[2]}) {
        SCOPED_TRACE(hook.name);
        on_ranks({1, "threads"}, [&](int, ddp_group* group) {
            DeviceModel model(group, {900, 900, 400, 300}, false, {0, 1}, ddp::Context::defaults(),
                              10);
            model.context.use_hook(hook.name, hook.options);
            model.context.commit();
            for (int s = 0; s < 3; ++s) step(model, 0, s);
            const long alive = fake::counts().pinned;
            auto allocations = [made = fake::pinned_allocations()]() mutable {
                const long before = std::exchange(made, fake::pinned_allocations());
                return made - before;
            };
            const StateFile file = model.context.save_hook_state();
            EXPECT_EQ(allocations(), 1);
            model.context.load_hook_state(file);
            EXPECT_EQ(allocations(), 1);
            EXPECT_EQ(fake::counts().pinned, alive);
            step(model, 0, 3);
            EXPECT_TRUE(fake::settle());
            EXPECT_EQ(allocations(), 0);
            EXPECT_EQ(fake::counts().pinned, alive);
        });
    }
}

// With votes the hook is called for a bucket when those after it may wait already for gradients
// that are not computed yet.
TEST_F(DeviceKeptTest, ABucketDoesNotWaitForGradientsOfLaterOnes) {
    for (const char* backend : {"streams", "shm"})
        for (const Hook& hook : kHooks) {
            std::promise<void> given;
            RankOptions ranks(2, backend);
            ranks.round_robin = 2;  // buckets of one group have one stream
            on_ranks(ranks, [&](int rank, ddp_group* group) {
                auto options = ddp::Context::defaults();
                options.flags = DDP_CONTEXT_SKIP_UNUSED_BUCKETS | DDP_CONTEXT_FIND_UNUSED;
                std::atomic<int> reduced{0};
                {
                    DeviceModel model(group, {900, 900}, false, {rank}, options, 30);
                    void* late = fake::make_stream(rank);
                    model.context.use_hook(hook.name, hook.options);
                    model.context.hook_then(
                        [&](ddp_group*, ddp_bucket* bucket) {
                            if (ddp_bucket_index(bucket) == 0)
                                fake::launch(rank, ddp_bucket_stream(bucket), [&] { ++reduced; });
                        },
                        DDP_WORK_ANY_THREAD);
                    model.context.adopt_plan(kTwoSwapped);
                    model.context.commit();
                    step(model, rank, 0);
                    model.context.step_begin();
                    std::promise<void> computed;
                    if (rank == 1) given.get_future().wait();
                    model.give(1, 1);
                    if (rank == 0)
                        fake::launch(rank, late,
                                     [gate = computed.get_future().share()] { gate.wait(); });
                    model.context.grad_ready_on(0, late);
                    if (rank == 0) {
                        given.set_value();
                        const auto end =
                            std::chrono::steady_clock::now() + std::chrono::seconds(10);
                        while (reduced < 2 && std::chrono::steady_clock::now() < end)
                            std::this_thread::sleep_for(std::chrono::milliseconds(1));
                        EXPECT_EQ(reduced, 2) << backend << " " << hook.name;
                    }
                    computed.set_value();
                    model.context.finalize();
                    model.close();
                    fake::free_stream(late);
                }
            });
        }
}

// The first steps have fewer buckets than the state, as before a rebuild: what is of later ones
// waits for them.
TEST_F(DeviceKeptTest, AStateMayBeOfBucketsThatComeLater) {
    for (const std::vector<int>& devices : {std::vector<int>{0}, std::vector<int>{0, 1}})
        on_ranks({1, "threads"}, [&](int, ddp_group* group) {
            StateFile file;
            const auto run = [&](const std::vector<int>& where, bool load) {
                DeviceModel model(group, {900, 900, 900, 900}, false, where);
                model.context.use_hook("batched_powersgd", "rank=2,start=0");
                constexpr const char* four =
                    R"({"libddp_plan": 1, "buckets": [["p0"], ["p1"], ["p2"], ["p3"]]})";
                model.context.adopt_plan(
                    load ? R"({"libddp_plan": 1, "buckets": [["p0", "p2"], ["p1", "p3"]]})" : four);
                model.context.commit();
                if (!load) {
                    for (int s = 0; s < 2; ++s) step(model, 0, s);
                    file = model.context.save_hook_state();
                } else {
                    model.context.load_hook_state(file);
                    EXPECT_EQ(model.context.save_hook_state(), file);
                    const long alive = fake::counts().pinned;
                    model.context.adopt_plan(four);
                    step(model, 0, 2);
                    EXPECT_TRUE(fake::settle());
                    EXPECT_EQ(fake::counts().pinned, alive);
                }
                return model.context.save_hook_state();
            };
            run({-1}, false);
            const StateFile on_cpu = run({-1}, true);
            EXPECT_EQ(run(devices, true), on_cpu);
        });
}

}  // namespace device_kept_test
