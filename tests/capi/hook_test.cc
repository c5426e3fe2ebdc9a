// Communication hooks of the user: what they see, what they may do, how they fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "capi/bad_input.h"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::ElementsAre;
using testing::HasSubstr;

namespace hook_test {

ddp_context_options small_buckets() {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = 40;
    return options;
}

void step(Model& m, int rank, float factor = 12) {
    m.context.step_begin();
    for (int i = m.count() - 1; i >= 0; --i) {
        m.fill(i, static_cast<float>(rank + 1) * factor);
        m.context.grad_ready(i);
    }
    m.context.finalize();
}

class HookTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ViewAndCopy, HookTest, testing::Bool());

ddp::Work average(ddp_group* group, ddp_bucket* bucket) {
    ddp_work* work = nullptr;
    ddp::detail::call(ddp_allreduce, group, static_cast<const void*>(nullptr),
                      ddp_bucket_buffer(bucket), ddp_bucket_count(bucket), ddp_bucket_dtype(bucket),
                      DDP_AVG, &work);
    return ddp::Work(work);
}

TEST_P(HookTest, AveragingHookEqualsNoHook) {
    for (const char* backend : {"threads", "threads-plain", "threads-caller", "tcp", "shm"})
        on_ranks({2, backend}, [&](int rank, ddp_group* group) {
            Model m(group, {10, 20, 3}, GetParam(), small_buckets());
            m.context.commit();
            m.context.set_comm_hook(average);
            for (int s = 0; s < 3; ++s) {
                step(m, rank);
                for (int i = 0; i < 3; ++i) EXPECT_TRUE(m.holds(i, 18));
            }
            m.context.use_default_hook();
            step(m, rank);
            for (int i = 0; i < 3; ++i) EXPECT_TRUE(m.holds(i, 18));
        });
}

TEST_P(HookTest, SeesEveryBucketInOrderFromTheFirstStepOn) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, {10, 20, 3}, GetParam(), small_buckets());
        std::vector<int> indices, last, params;
        std::vector<int64_t> steps;
        m.context.set_comm_hook([&](ddp_group* g, ddp_bucket* b) {
            indices.push_back(ddp_bucket_index(b));
            last.push_back(ddp_bucket_is_last(b));
            steps.push_back(ddp_bucket_step(b));
            for (int i = 0; i < ddp_bucket_param_count(b); ++i) {
                ddp_tensor gradient{}, value{};
                gradient.struct_size = value.struct_size = sizeof(ddp_tensor);
                ddp::detail::call(ddp_bucket_gradient, static_cast<const ddp_bucket*>(b), i,
                                  &gradient);
                ddp::detail::call(ddp_bucket_parameter, static_cast<const ddp_bucket*>(b), i,
                                  &value);
                params.push_back(gradient.param);
                EXPECT_EQ(gradient.shape[0], gradient.count);
                EXPECT_EQ(static_cast<float*>(gradient.data)[0], static_cast<float>(rank + 1) * 12)
                    << "not divided";
                EXPECT_EQ(value.data, m.data[static_cast<size_t>(gradient.param)].data());
                EXPECT_GE(static_cast<char*>(gradient.data),
                          static_cast<char*>(ddp_bucket_buffer(b)));
            }
            return average(g, b);
        });
        m.context.commit();
        step(m, rank);
        step(m, rank);
        EXPECT_THAT(indices, ElementsAre(0, 1, 0, 1));
        EXPECT_THAT(last, ElementsAre(0, 1, 0, 1));
        EXPECT_THAT(steps, ElementsAre(0, 0, 1, 1));
        EXPECT_THAT(params, ElementsAre(2, 1, 0, 2, 1, 0));
    });
}

TEST_P(HookTest, SynchronousAndOtherBuffer) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, {5, 9}, GetParam());
        m.context.commit();
        std::vector<double> result;
        m.context.set_comm_hook([&](ddp_group* g, ddp_bucket* b) {
            // A result in f64, in memory of the hook's own.
            auto* in = static_cast<float*>(ddp_bucket_buffer(b));
            result.assign(in, in + ddp_bucket_count(b));
            ddp::detail::call(ddp_allreduce, g, static_cast<const void*>(nullptr),
                              static_cast<void*>(result.data()), result.size(), DDP_F64, DDP_SUM,
                              static_cast<ddp_work**>(nullptr));
            ddp::detail::call(ddp_bucket_set_buffer, b, static_cast<void*>(result.data()), DDP_F64);
            return ddp::Work();
        });
        for (int s = 0; s < 2; ++s) {
            step(m, rank);
            for (int i = 0; i < 2; ++i) EXPECT_TRUE(m.holds(i, 36, 2));
        }
    });
}

TEST_P(HookTest, ChainsAndThreadsOfTheProgram) {
    on_ranks({3, "tcp"}, [&](int rank, ddp_group* group) {
        Model m(group, {10, 20, 3, 17, 40}, GetParam(), small_buckets());
        m.context.commit();
        std::vector<std::thread> threads;
        m.context.set_comm_hook([&](ddp_group* g, ddp_bucket* b) {
            auto summed = [g, b] {
                ddp_work* work = nullptr;
                ddp::detail::call(ddp_allreduce, g, static_cast<const void*>(nullptr),
                                  ddp_bucket_buffer(b), ddp_bucket_count(b), ddp_bucket_dtype(b),
                                  DDP_SUM, &work);
                return ddp::Work(work);
            };
            // Sum; divide on a thread of the program's own; then once more through the group, as an
            // average of equal values.
            return summed().then([&threads, g, b] {
                auto nothing = +[](void*, ddp_work**, ddp_error**) -> ddp_status { return DDP_OK; };
                ddp_work *mine = nullptr, *kept = nullptr;
                ddp::detail::call(ddp_work_create, int64_t{10'000}, &mine);
                ddp::detail::call(ddp_work_then, mine, nothing, static_cast<void*>(nullptr),
                                  static_cast<void (*)(void*)>(nullptr),
                                  std::uint32_t{DDP_WORK_ANY_THREAD}, &kept);
                threads.emplace_back([mine, b] {
                    auto* x = static_cast<float*>(ddp_bucket_buffer(b));
                    for (size_t i = 0; i < ddp_bucket_count(b); ++i) x[i] /= 3;
                    ddp_work_complete(mine, DDP_OK, nullptr, nullptr);
                    ddp_work_free(mine);
                });
                return ddp::Work(kept).then([g, b] { return average(g, b); });
            });
        });
        for (int s = 0; s < 5; ++s) {
            step(m, rank);
            for (int i = 0; i < m.count(); ++i)
                for (size_t k = 0; k < m.size(i); ++k)
                    ASSERT_NEAR(m.grad(i)[k], 24 + static_cast<float>(k), 1e-4);
        }
        for (auto& thread : threads) thread.join();
    });
}

TEST_P(HookTest, ErrorsNameTheBucketAndReachEveryRank) {
    on_ranks({2, "tcp"}, [&](int rank, ddp_group* group) {
        Model m(group, {10, 20, 3}, GetParam(), small_buckets());
        const Facts facts = facts_of([&] {
            m.context.commit();
            m.context.set_comm_hook([&](ddp_group* g, ddp_bucket* b) {
                if (rank == 1 && ddp_bucket_index(b) == 1)
                    throw std::runtime_error("the compressor is out of steam");
                return average(g, b);
            });
            step(m, rank);
        });
        EXPECT_EQ(facts, (Facts{DDP_ERROR_CALLBACK, 1, -1, 1, 0}));
        EXPECT_THAT(facts.message, HasSubstr("out of steam"));
    });
}

TEST_P(HookTest, WorksOfOtherGroupsAndNoneAtAll) {
    on_ranks({2, "tcp"}, [&](int rank, ddp_group* group) {
        Model m(group, {10, 20, 3}, GetParam(), small_buckets());
        m.context.commit();
        ddp_group* other = nullptr;
        ddp::detail::call(ddp_group_split, group, 0, 0, &other);
        m.context.set_comm_hook([&](ddp_group*, ddp_bucket* b) { return average(other, b); });
        step(m, rank);
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(m.holds(i, 18));
        // DDP_OK without a work: what the hook leaves in the bucket is the result, here this rank's
        // own gradient.
        m.context.set_comm_hook([&](ddp_group*, ddp_bucket*) { return ddp::Work(); });
        step(m, rank);
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(m.holds(i, static_cast<float>(rank + 1) * 12));
        ddp_group_free(other);
    });
}

// Rank 0 is rank 2 there, and ends that group while the others wait in it. They tell this group
// what has happened. If the group has ended before they come, the error of their own call is the
// hook's.
TEST_P(HookTest, AnErrorOfAnotherGroupNamesARankOfThisOne) {
    for (const bool before_they_come : {false, true}) {
        std::atomic<int> waiting{0};
        on_ranks({3, "threads"}, [&](int rank, ddp_group* group) {
            Model m(group, {10}, GetParam(), small_buckets());
            m.context.commit();
            ddp_group* other = nullptr;
            ddp::detail::call(ddp_group_split, group, 0, 2 - rank, &other);
            const auto wait_for = [](const auto& condition) {
                for (int i = 0; i < 10'000 && !condition(); ++i)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
            };
            m.context.set_comm_hook([&](ddp_group* g, ddp_bucket* b) {
                if (rank == 0) {
                    wait_for([&] { return before_they_come || waiting == 2; });
                    ddp::detail::call(ddp_group_abort, other, "the test wants it");
                    wait_for([&] { return ddp_group_status(g, nullptr) != DDP_OK; });
                } else if (before_they_come) {
                    wait_for([&] { return ddp_group_status(other, nullptr) != DDP_OK; });
                }
                auto work = average(other, b);
                ++waiting;
                return work;
            });
            try {
                step(m, rank);
                ADD_FAILURE() << "finalize succeeded";
            } catch (const ddp::Error& e) {
                EXPECT_EQ(e.status(), DDP_ERROR_ABORTED) << e.what();
                EXPECT_NE(e.rank(), 0) << e.what();
                const std::string cause = before_they_come
                                              ? ": the communication hook failed: "
                                              : ": in another group, which counts its own ranks: ";
                EXPECT_THAT(e.what(), HasSubstr("rank " + std::to_string(e.rank()) + cause));
            }
            ddp_group_free(other);
        });
    }
}

TEST(HookOwnership, UserDataIsDestroyedOnceOnReplacementOrFree) {
    struct Data {
        int destroyed = 0;
    } first, second;
    auto hook = +[](void*, ddp_group*, ddp_bucket*, ddp_work**, ddp_error**) -> ddp_status {
        return DDP_OK;
    };
    auto destroy = +[](void* data) { ++static_cast<Data*>(data)->destroyed; };
    on_ranks({1}, [&](int, ddp_group* group) {
        Model m(group, {2}, true);
        ASSERT_EQ(ddp_set_comm_hook(m.context.get(), hook, &first, destroy, nullptr), DDP_OK);
        m.context.commit();
        EXPECT_EQ(first.destroyed, 0);
        ASSERT_EQ(ddp_set_comm_hook(m.context.get(), hook, &second, destroy, nullptr), DDP_OK);
        EXPECT_EQ(first.destroyed, 1);
        m.context.grad_ready(0);
        EXPECT_EQ(ddp_set_comm_hook(m.context.get(), hook, &first, destroy, nullptr),
                  DDP_ERROR_INVALID_STATE);
        EXPECT_EQ(first.destroyed, 1) << "a refused hook stays the caller's";
        m.context.finalize();
        EXPECT_EQ(second.destroyed, 0);
    });
    EXPECT_EQ(second.destroyed, 1);
}

// The context refuses it because of the hook that is there.
TEST(HookOwnership, ARefusedContinuationStaysTheCallers) {
    on_ranks(1, [](int, ddp_group* group) {
        int destroyed = 0;
        Model m(group, {3}, true);
        m.context.use_hook("noop");
        std::int32_t norm = -1;
        ASSERT_EQ(ddp_track_grad_norm(m.context.get(), 2, nullptr, 0, &norm, nullptr), DDP_OK);
        EXPECT_EQ(
            ddp_hook_then(
                m.context.get(),
                [](void*, ddp_group*, ddp_bucket*, ddp_error**) -> ddp_status { return DDP_OK; },
                &destroyed, [](void* data) { ++*static_cast<int*>(data); }, 0, nullptr),
            DDP_ERROR_UNSUPPORTED);
        EXPECT_EQ(destroyed, 0);
    });
}

// In a session where one cell failed: the next context says that the group was broken before, and
// by what.
TEST(FailedHook, TheNextContextSaysThatTheGroupIsBroken) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        {
            Model m(group, {10}, true, small_buckets());
            m.context.commit();
            if (rank == 1)
                m.context.set_comm_hook([](ddp_group*, ddp_bucket*) -> ddp::Work {
                    throw std::runtime_error("out of steam");
                });
            EXPECT_THROW(step(m, rank), ddp::Error);
        }
        ddp_context* next = nullptr;
        ddp_group* part = nullptr;
        const std::string cause = "rank 1: the communication hook failed";
        expect_refused({
            {"split",
             DDP_ERROR_CALLBACK,
             {"ddp_group_split", "the group is broken", "new group", cause},
             calling(ddp_group_split, group, 0, 0, &part)},
            {"context",
             DDP_ERROR_CALLBACK,
             {"ddp_context_create", "the group is broken", "new group", cause},
             calling(ddp_context_create, group, nullptr, &next)},
        });
    });
}

}  // namespace hook_test
