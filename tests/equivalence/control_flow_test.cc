// Branches that depend on the data: the same on every rank, or not.
#include "equivalence/branches.h"

using namespace equivalence;

namespace control_flow_test {

class ControlFlow : public Equivalence {};
INSTANTIATE_TEST_SUITE_P(All, ControlFlow, testing::ValuesIn(all_cases()), name_of);

// The second layer in every other step, on all ranks: the exact map of what was used.
TEST_P(ControlFlow, TheSameOnEveryRank) {
    const Graph graph = [](int, int step) {
        return step % 2 == 0 ? std::set<ddp_param>{0, 1} : std::set<ddp_param>{0};
    };
    on_ranks(ranks(), [&](int, ddp_group* group) {
        Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED, 2);
        model.context.commit();
        for (int step = 0; step < 6; ++step) {
            model.context.step_begin();
            model.backward(graph, step);
            end_step(model.context);
            model.expect_step(graph, step);
            EXPECT_EQ(model.context.used(0), true);
            EXPECT_EQ(model.context.used(1), step % 2 == 0);
        }
    });
}

// The second layer on the last rank only, in every other step.
TEST_P(ControlFlow, DifferentAcrossRanks) {
    const Graph graph = [this](int rank, int step) {
        return step % 2 == 0 && rank == world() - 1 ? std::set<ddp_param>{0, 1}
                                                    : std::set<ddp_param>{0};
    };
    on_ranks(ranks(), [&](int, ddp_group* group) {
        for (std::uint32_t more : {0u, std::uint32_t{DDP_CONTEXT_SKIP_UNUSED_BUCKETS}}) {
            Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED | more, 2);
            model.context.commit();
            for (int step = 0; step < 6; ++step) {
                model.context.step_begin();
                model.backward(graph, step);
                end_step(model.context);
                model.expect_step(graph, step);
                EXPECT_EQ(model.context.used(1), step % 2 == 0);
            }
        }
    });
}

// Every rank has a graph of its own and walks it in a direction of its own; plans stay equal, and
// so do gradients.
TEST_P(ControlFlow, DifferentGraphsKeepOnePlan) {
    const Graph graph = [](int rank, int) {
        return rank % 2 == 0 ? std::set<ddp_param>{0, 2, 4} : std::set<ddp_param>{1, 3, 4};
    };
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED, 5);
        model.context.commit();
        for (int step = 0; step < 8; ++step) {
            model.context.step_begin();
            model.backward(graph, step, rank % 2 == 1);
            end_step(model.context);
            model.expect_step(graph, step);
            const std::string plan = model.context.plan();
            expect_same_on_every_rank(group, plan.data(), plan.size(), "the plan");
            for (ddp_param i = 0; i < 4 && world() > 1; ++i)
                expect_same_on_every_rank(group, model.grad(i), model.size(i),
                                          numbered("gradient ", i));
        }
    });
}

// In unsynced steps what is used adds up, as gradients do, and the map is cleared only by a synced
// step.
TEST_P(ControlFlow, WhatUnsyncedStepsUseCounts) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED, 4);
        model.context.commit();
        for (int round = 0; round < 2; ++round) {
            for (ddp_param i = 0; i < 4; ++i) model.set(i, leftover(i, rank));
            // Branch 0 in the unsynced step on rank 0, branch 1 in the synced one, branch 2 in
            // both.
            for (bool sync : {false, true}) {
                model.context.set_sync(sync);
                model.context.step_begin();
                std::set<ddp_param> used{2};
                if (!sync && rank == 0) used.insert(0);
                if (sync) used.insert(1);
                for (ddp_param i : used) {
                    model.set(i, i == 2 && sync ? 2 : 1);
                    model.context.grad_ready(i);
                }
                end_step(model.context);
            }
            expect_near(model.grad(0), std::vector<double>(3, 1.0 / world()), "branch 0");
            expect_near(model.grad(1), std::vector<double>(3, 1), "branch 1");
            expect_near(model.grad(2), std::vector<double>(3, 2), "branch 2");
            EXPECT_TRUE(model.holds(3, leftover(3, rank)));
            for (ddp_param i = 0; i < 4; ++i) EXPECT_EQ(model.context.used(i), i < 3);
        }
        // Nothing of it is left: a synced step that uses nothing.
        for (ddp_param i = 0; i < 4; ++i) model.set(i, leftover(i, rank));
        model.context.step_begin();
        end_step(model.context);
        for (ddp_param i = 0; i < 4; ++i) {
            EXPECT_TRUE(model.holds(i, leftover(i, rank)));
            EXPECT_FALSE(model.context.used(i));
        }
    });
}

}  // namespace control_flow_test
