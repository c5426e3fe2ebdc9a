// After something went wrong: discarded steps, another group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/ddp.hpp"
#include "support/model.h"
#include "support/ranks.h"

using testing::HasSubstr;

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
    for (int p = 0; p < model.count(); ++p) EXPECT_TRUE(model.holds(p, static_cast<float>(world - 1) / 2));
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

// The first step records the order of gradients; one that was not finished must not be part of the record.
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
            ASSERT_EQ(ddp_stats_ready_order(model.context.get(), order.data(), order.size(), &count, nullptr), DDP_OK);
            EXPECT_EQ(std::vector<ddp_param>(order.begin(), order.begin() + static_cast<int>(count)),
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
