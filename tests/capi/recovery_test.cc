// After something went wrong: discarded steps, another group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/model.h"
#include "support/ranks.h"

namespace recovery_test {

class RecoveryTest : public testing::TestWithParam<bool> {
protected:
    bool view() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Views, RecoveryTest, testing::Bool());

ddp_context_options small_buckets() {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = 64;
    return options;
}

void good_step(Model& model, int rank, int world) {
    for (int p = model.count() - 1; p >= 0; --p) {
        model.fill(p, static_cast<float>(rank));
        model.context.grad_ready(p);
    }
    model.context.finalize();
    for (int p = 0; p < model.count(); ++p)
        EXPECT_TRUE(model.holds(p, static_cast<float>(world - 1) / 2));
}

// Ranks discard at different places of the backward pass, one after finalize would have been due.
TEST_P(RecoveryTest, ADiscardedStepLeavesNoTrace) {
    for (int world : {1, 3})
        on_ranks({world}, [&](int rank, ddp_group* group) {
            Model model(group, {20, 20, 20}, view(), small_buckets());
            model.context.commit();
            for (int round = 0; round < 2; ++round) {
                model.context.set_sync(false);
                model.context.grad_ready(0);
                model.context.finalize();
                model.context.set_sync(true);
                for (int p = 2; p > 2 - rank; --p) {
                    model.fill(p, 1000);
                    model.context.grad_ready(p);
                }
                model.context.discard_step();
                EXPECT_EQ(model.context.stats().synced_steps, 2 * round + 1);
                model.context.step_begin();
                good_step(model, rank, world);
            }
        });
}

// Whatever shares the bucket: what does not take part is the program's.
TEST_P(RecoveryTest, ADiscardedStepLeavesFrozenAndSkippedGradientsAlone) {
    on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
        for (const bool freezes : {true, false}) {
            Model model(group, {4, 4}, view());
            model.context.commit();
            ASSERT_EQ(model.context.stats().bucket_count, 1);
            if (freezes)
                model.context.set_frozen({1}, true);
            else
                model.context.skip({1});
            model.fill(1, 5);
            model.fill(0, static_cast<float>(rank));
            model.context.grad_ready(0);
            model.context.discard_step();
            EXPECT_TRUE(model.holds(1, 5)) << freezes;
        }
    });
}

TEST_P(RecoveryTest, ADiscardedStepLeavesNoInfinityInAView) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model model(group, {20, 20}, true, small_buckets());
        model.context.commit();
        for (int p : {1, 0}) {
            model.fill(p, 1);
            if (rank == 0) model.grad(p)[3] = std::numeric_limits<float>::quiet_NaN();
            model.context.grad_ready(p);
        }
        model.context.discard_step();
        EXPECT_EQ(model.gradients(), std::vector<float>(40));
    });
}

// As a scope of unsynced steps does that an exception ends. The new setting counts from the next
// step on.
TEST_P(RecoveryTest, AnUnsyncedStepMayBeginTheSyncedOnes) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model model(group, {20, 20}, view(), small_buckets());
        model.context.commit();
        for (bool discards : {true, false}) {
            model.context.set_sync(false);
            model.context.grad_ready(1);
            model.context.set_sync(true);
            if (discards) {
                model.context.discard_step();
            } else {
                model.context.grad_ready(0);
                model.context.finalize();
            }
            EXPECT_EQ(model.context.stats().synced_steps, discards ? 0 : 1);
            good_step(model, rank, 2);
        }
        model.context.grad_ready(1);
        EXPECT_THROW(model.context.set_sync(false), ddp::Error) << "the step is synced";
        model.context.grad_ready(0);
        model.context.finalize();
    });
}

// The rank that finalizes cannot know; it meets the other's message in its next step.
TEST_P(RecoveryTest, OneRankMayNotDiscardAlone) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model model(group, {20, 20}, view(), small_buckets());
        model.context.commit();
        try {
            for (int p : {1, 0}) {
                model.fill(p, 1);
                if (p == 1 || rank == 0) model.context.grad_ready(p);
            }
            if (rank == 0) {
                model.context.finalize();
                model.context.grad_ready(1);
                model.context.grad_ready(0);
                model.context.finalize();
            } else {
                model.context.discard_step();
            }
            ADD_FAILURE() << "no error";
        } catch (const ddp::Error& e) {
            EXPECT_EQ(e.status(), DDP_ERROR_MISMATCH) << e.what();
        }
    });
}

TEST_P(RecoveryTest, ABrokenContextGoesOnInANewGroup) {
    constexpr int world = 3;
    on_ranks({world}, [&](int rank, ddp_group* group) {
        ddp_group* spare = nullptr;
        ASSERT_EQ(ddp_group_split(group, 0, rank, &spare, nullptr), DDP_OK);
        BorrowedGroup next(spare);
        {
            Model model(group, {20, 20}, view(), small_buckets());
            model.context.commit();
            good_step(model, rank, world);
            next.barrier();  // in the group that stays whole: nobody may still be in the step
            if (rank == 2) model.context.abort("a test");
            EXPECT_THROW(
                {
                    model.context.grad_ready(1);  // the news may be here before
                    model.context.finalize();
                },
                ddp::Error);
            EXPECT_THROW(model.context.grad_ready(0), ddp::Error);
            model.context.set_group(next);
            for (int round = 0; round < 3; ++round) {
                model.context.step_begin();
                good_step(model, rank, world);
            }
        }
        ddp_group_free(spare);
    });
}

// The step has succeeded on rank 0 only. Afterwards all hooks count it: from step 1 on they
// compress, or stop to reduce.
TEST_P(RecoveryTest, HooksCountAlikeInTheNewGroup) {
    for (const char* hook : {"powersgd", "post_local_sgd"})
        on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
            BorrowedGroup old(group);
            ddp::Group next = old.split(0, rank);
            ddp::Context context(old);
            std::vector<float> data(64), gradient(64);
            context.add_param<float>("w", {8, 8}, data.data(), view() ? nullptr : gradient.data());
            const bool compresses = hook == std::string("powersgd");
            context.use_hook(hook, compresses ? "rank=1,start=1" : "start=1");
            bool fails = rank == 1;
            context.set_reduced_callback([&](ddp_param, bool) {
                if (!std::exchange(fails, false)) return;
                next.barrier();  // rank 0 has ended the step
                throw std::runtime_error("a test");
            });
            context.commit();
            const auto step = [&] {
                float* home = view() ? context.grad_view<float>(0) : gradient.data();
                std::fill(home, home + 64, static_cast<float>(rank));
                context.grad_ready(0);
                context.finalize();
                return home[0];
            };
            if (rank == 0) {
                step();
                next.barrier();
            } else {
                EXPECT_THROW(step(), ddp::Error);
            }
            context.set_group(next);
            for (int i = 0; i < 3; ++i) EXPECT_NEAR(step(), compresses ? 0.5 : rank, 1e-5) << hook;
        });
}

// It is recorded again: rank 1 has no record yet, and the parameters that others use are others.
TEST_P(RecoveryTest, AStaticGraphIsRecordedAgainInANewGroup) {
    on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
        BorrowedGroup old(group);
        ddp::Group next = old.split(0, rank);
        auto options = small_buckets();
        options.flags |= DDP_CONTEXT_STATIC_GRAPH;
        Model model(group, {20, 20, 20}, view(), options);
        bool fails = rank == 1;
        model.context.set_reduced_callback([&](ddp_param param, bool) {
            if (param != 0 || !std::exchange(fails, false)) return;
            next.barrier();  // rank 0 has ended the step
            throw std::runtime_error("a test");
        });
        model.context.commit();
        const auto step = [&](int unused) {
            for (int p = 2; p >= 0; --p) {
                model.fill(p, static_cast<float>(rank));
                if (p != unused) model.context.grad_ready(p);
            }
            model.context.finalize();
        };
        if (rank == 0) {
            step(2);
            next.barrier();
        } else {
            EXPECT_THROW(step(2), ddp::Error);
        }
        model.context.set_group(next);
        for (int i = 0; i < 3; ++i) {
            step(1);
            for (int p : {0, 2}) EXPECT_TRUE(model.holds(p, 0.5f));
            EXPECT_FALSE(model.context.used(1));
        }
    });
}

// The bucket whose work has failed lets the step end; a thread of the program's transport still has
// the other.
TEST_P(RecoveryTest, ABucketStaysAsLongAsTheWorkOfTheProgram) {
    bool frees = false;  // the context, instead of taking it to another group
    const auto leave = [&](int, ddp_group* group) {
        BorrowedGroup old(group);
        const ddp::Group next = old.split(0, 0);
        std::thread transport;
        std::atomic<bool> moved{false};
        {
            Model model(group, {20, 20}, view(), small_buckets());
            model.context.set_comm_hook([&](ddp_group*, ddp_bucket* bucket) {
                ddp_work *work = nullptr, *given = nullptr;
                ddp::detail::call(ddp_work_create, std::int64_t{60'000}, &work);
                if (ddp_bucket_index(bucket) == 0) {
                    ddp_work_complete(work, DDP_ERROR_UNAVAILABLE, "a test", nullptr);
                    return ddp::Work(work);
                }
                const auto nothing =
                    +[](void*, ddp_work**, ddp_error**) -> ddp_status { return DDP_OK; };
                ddp::detail::call(ddp_work_then, work, nothing, static_cast<void*>(nullptr),
                                  static_cast<void (*)(void*)>(nullptr),
                                  std::uint32_t{DDP_WORK_ANY_THREAD}, &given);
                transport = std::thread([&moved, bucket, work] {
                    while (!moved) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    auto* values = static_cast<float*>(ddp_bucket_buffer(bucket));
                    std::fill(values, values + ddp_bucket_count(bucket), 77.f);
                    ddp_work_complete(work, DDP_OK, nullptr, nullptr);
                    ddp_work_free(work);
                });
                return ddp::Work(given);
            });
            model.context.commit();
            for (int p : {1, 0}) model.context.grad_ready(p);
            EXPECT_THROW(model.context.finalize(), ddp::Error);
            if (!frees) {
                model.context.set_group(next);
                model.context.use_default_hook();
                for (int p : {1, 0}) {
                    model.fill(p, static_cast<float>(p + 1));
                    model.context.grad_ready(p);
                }
                moved = true;
                transport.join();
                model.context.finalize();
                for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, static_cast<float>(p + 1)));
            }
        }
        moved = true;
        if (transport.joinable()) transport.join();
    };
    on_ranks({1}, leave);
    frees = true;
    on_ranks({1}, leave);
}

// The first step records the order of gradients; one that was not finished must not be part of the
// record.
TEST_P(RecoveryTest, AContextThatBreaksInItsFirstStepRecordsTheNextOne) {
    on_ranks({1}, [&](int, ddp_group* group) {
        ddp_group* spare = nullptr;
        ASSERT_EQ(ddp_group_split(group, 0, 0, &spare, nullptr), DDP_OK);
        BorrowedGroup next(spare);
        {
            Model model(group, {20, 20, 20}, view(), small_buckets());
            model.context.commit();
            for (int p : {0, 1}) model.context.grad_ready(p);
            model.context.abort("a test");
            model.context.set_group(next);
            good_step(model, 0, 1);
            std::vector<ddp_param> order(6, -1);
            std::size_t count = 0;
            ASSERT_EQ(ddp_stats_ready_order(model.context.get(), order.data(), order.size(), &count,
                                            nullptr),
                      DDP_OK);
            EXPECT_EQ(
                std::vector<ddp_param>(order.begin(), order.begin() + static_cast<int>(count)),
                (std::vector<ddp_param>{2, 1, 0}));
        }
        ddp_group_free(spare);
    });
}

TEST_P(RecoveryTest, AHealthyContextMovesBetweenStepsToFewerRanks) {
    on_ranks({3}, [&](int rank, ddp_group* group) {
        ddp_group* part = nullptr;
        ASSERT_EQ(ddp_group_split(group, rank < 2 ? 0 : 1, rank, &part, nullptr), DDP_OK);
        {
            BorrowedGroup next(part);
            Model model(group, {20, 20}, view(), small_buckets());
            model.context.commit();
            good_step(model, rank, 3);
            model.context.grad_ready(1);
            EXPECT_THROW(model.context.set_group(next), ddp::Error) << "in the middle of a step";
            model.context.grad_ready(0);
            model.context.finalize();
            model.context.set_group(next);
            model.context.step_begin();
            good_step(model, rank < 2 ? rank : 0, rank < 2 ? 2 : 1);
        }
        ddp_group_free(part);
    });
}

// Such as that of a rank on which a rebuild has failed.
TEST_P(RecoveryTest, ADifferentPlanGivesWayToThatOfRank0) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        BorrowedGroup common(group);
        const ddp::Group next = common.split(0, rank), alone = common.split(rank, 0);
        Model model(alone.get(), {20, 20}, view(), small_buckets());
        if (rank == 1) model.context.adopt_plan(R"({"libddp_plan": 1, "buckets": [["p0", "p1"]]})");
        model.context.commit();
        EXPECT_EQ(model.context.stats().bucket_count, rank == 0 ? 2 : 1);
        model.context.set_group(next);
        EXPECT_EQ(model.context.stats().bucket_count, 2);
        for (int i = 0; i < 3; ++i) {
            good_step(model, rank, 2);
            model.context.step_begin();
        }
    });
}

}  // namespace recovery_test
