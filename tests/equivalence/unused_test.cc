// Parameters that a step does not use: on no rank, on some, in some steps.
#include <random>

#include "equivalence/branches.h"
#include "equivalence/net.h"

using namespace equivalence;

namespace unused_test {

class Unused : public Equivalence {};
INSTANTIATE_TEST_SUITE_P(All, Unused, testing::ValuesIn(all_cases()), name_of);

TEST_P(Unused, TheOthersTrainAsInOneProcess) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view(), with_flags(DDP_CONTEXT_FIND_UNUSED));
        const ddp_param unused = net.add("third.weight", {5, 2});
        net.context.commit();
        net.set(unused, 7.5);
        Tensors alone = initial_weights();
        for (int step = 0; step < 4; ++step) {
            net.context.step_begin();
            for (ddp_param i = 0; i < unused; ++i) net.set(i, 0);
            const Batch batch =
                make_batch(static_cast<unsigned>(step), 2 * static_cast<std::size_t>(world()));
            net.accumulate(share_of(batch, rank, world()));
            for (ddp_param i = unused - 1; i >= 0; --i) net.context.grad_ready(i);
            end_step(net.context);
            for (ddp_param i = 0; i < unused; ++i)
                descend(net.values[static_cast<std::size_t>(i)], net.grad(i));
            train_alone(alone, batch);
            for (std::size_t i = 0; i < alone.size(); ++i)
                expect_near(net.values[i].data(), alone[i], at_step(step));
            EXPECT_TRUE(net.holds(unused, 7.5)) << "untouched, bit for bit";
            EXPECT_FALSE(net.context.used(unused));
        }
    });
}

// Momentum and weight decay would move a parameter whose gradient is only left over; ddp_param_used
// tells that nobody used it.
TEST_P(Unused, TheOptimizerLeavesThemAlone) {
    struct Optimizer {
        double momentum = 0;
        void step(std::vector<double>& values, double gradient) {
            momentum = 0.9 * momentum + gradient;
            for (double& v : values) v -= 0.01 * (momentum + 0.1 * v);
        }
    };
    // Branch 0 every second step, branch 1 always, branch 2 on the last rank only.
    const Graph graph = [this](int rank, int step) {
        std::set<ddp_param> used{1};
        if (step % 2 == 0) used.insert(0);
        if (rank == world() - 1 && step > 0) used.insert(2);
        return used;
    };
    on_ranks(ranks(), [&](int, ddp_group* group) {
        Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED, 3);
        for (auto& v : model.values) v.assign(3, 1);
        model.context.commit();
        std::vector<Optimizer> here(3), reference(3);
        Tensors alone(3, std::vector<double>(3, 1));
        for (int step = 0; step < 5; ++step) {
            model.context.step_begin();
            model.backward(graph, step);
            end_step(model.context);
            for (ddp_param i = 0; i < 3; ++i) {
                const auto at = static_cast<std::size_t>(i);
                if (model.context.used(i)) here[at].step(model.values[at], model.grad(i)[0]);
                if (auto mean = branch_mean(graph, i, step, world()))
                    reference[at].step(alone[at], *mean);
                expect_near(model.values[at].data(), alone[at], at_step(step));
            }
        }
    });
}

// Branch r belongs to rank r, the last one to nobody.
TEST_P(Unused, GloballyUnusedStaysLocallyUnusedBecomesTheMean) {
    const Graph graph = [](int rank, int) { return std::set<ddp_param>{rank}; };
    constexpr std::uint32_t find = DDP_CONTEXT_FIND_UNUSED, keep = DDP_CONTEXT_KEEP_LOCAL_UNUSED,
                            skip = DDP_CONTEXT_SKIP_UNUSED_BUCKETS,
                            fixed = DDP_CONTEXT_STATIC_GRAPH;
    on_ranks(ranks(), [&](int, ddp_group* group) {
        for (std::uint32_t flags :
             {find, find | keep, find | skip, find | keep | skip, fixed, fixed | keep})
            for (bool early : {false, true}) {
                SCOPED_TRACE(testing::Message()
                             << "flags " << flags << (early ? ", marked early" : ""));
                Branches model(group, view(), flags, world() + 1);
                model.context.commit();
                for (int step = 0; step < 3; ++step) {
                    model.context.step_begin();
                    const bool found_out = (flags & fixed) != 0 && step > 0;
                    if (early && !found_out) {
                        for (ddp_param i = 0; i < model.count(); ++i) model.set(i, 0);
                        model.backward(graph, step);
                        model.mark_the_rest_unused(graph, step);
                    } else {
                        model.backward(graph, step);
                    }
                    end_step(model.context);
                    model.expect_step(graph, step, (flags & keep) != 0);
                    const ddp_stats stats = model.context.stats();
                    EXPECT_EQ(stats.unused_params, 1);
                    // A rank that knows, or asks, does not send the last branch.
                    const bool knows = found_out || ((flags & skip) != 0 && world() > 1);
                    EXPECT_EQ(stats.unsent_buckets, knows ? 1 : 0) << at_step(step);
                }
            }
    });
}

// Rank 0 uses everything: nothing is unused there, and what it hears from the others must not
// change that.
TEST_P(Unused, NoneUnusedOnOneRank) {
    const Graph graph = [](int rank, int) {
        return rank == 0 ? std::set<ddp_param>{0, 1} : std::set<ddp_param>{1};
    };
    on_ranks(ranks(), [&](int, ddp_group* group) {
        Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED, 2);
        model.context.commit();
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            model.backward(graph, step);
            end_step(model.context);
            model.expect_step(graph, step);
            EXPECT_EQ(model.context.stats().unused_params, 0);
        }
    });
}

// A program that adds to gradients over several synced steps, and zeroes them only then, gets the
// sum of the steps' means.
TEST_P(Unused, WhatAddsUpOverSyncedStepsIsThatOfOneProcess) {
    constexpr std::uint32_t find = DDP_CONTEXT_FIND_UNUSED, skip = DDP_CONTEXT_SKIP_UNUSED_BUCKETS,
                            fixed = DDP_CONTEXT_STATIC_GRAPH;
    // Branch 0 everywhere, 1 on rank 0 only, 2 on all at first and then on the last only, 3 at
    // first only, 4 never.
    const auto uses = [this](std::uint32_t flags, ddp_param branch, int rank, int step) {
        const bool first = step == 0 && (flags & fixed) == 0;
        return branch == 0 || (branch == 1 && rank == 0) ||
               (branch == 2 && (first || rank == world() - 1)) || (branch == 3 && first);
    };
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::uint32_t flags : {find, find | skip, fixed})
            for (bool marked : {false, true})
                for (bool unsynced : {false, true}) {
                    SCOPED_TRACE(testing::Message()
                                 << "flags " << flags << (marked ? ", marked" : "")
                                 << (unsynced ? ", with unsynced steps" : ""));
                    Branches model(group, view(), flags | DDP_CONTEXT_ACCUMULATE, 5);
                    model.context.commit();
                    std::vector<double> expected(5);
                    for (ddp_param i = 0; i < 5; ++i) model.set(i, 0);
                    for (int step = 0; step < 6; ++step) {
                        const bool sync = !unsynced || step == 0 || step % 2 == 1;
                        if (step == 4) {  // the optimizer's: zeros count as zeros
                            expected.assign(5, 0);
                            for (ddp_param i = 0; i < 5; ++i) model.set(i, 0);
                        }
                        model.context.set_sync(sync);
                        model.context.step_begin();
                        std::vector<ddp_param> rest;
                        for (ddp_param i = 0; i < 5; ++i) {
                            for (int r = 0; r < world(); ++r)
                                if (uses(flags, i, r, step))
                                    expected[static_cast<std::size_t>(i)] +=
                                        branch_gradient(i, r, step) / world();
                            if (!uses(flags, i, rank, step)) {
                                rest.push_back(i);
                                continue;
                            }
                            model.set(i, model.grad(i)[0] + branch_gradient(i, rank, step));
                            model.context.grad_ready(i);
                        }
                        if (marked && sync && ((flags & fixed) == 0 || step == 0))
                            model.context.mark_unused(rest);
                        end_step(model.context);
                        if (!sync) continue;
                        for (ddp_param i = 0; i < 5; ++i)
                            expect_near(
                                model.grad(i),
                                std::vector<double>(3, expected[static_cast<std::size_t>(i)]),
                                numbered("branch ", i) + at_step(step));
                    }
                }
    });
}

// A gradient that no rank uses stays bit for bit, whatever the mean of it with itself would be.
TEST_P(Unused, WhatAddedUpAndNobodyUsesStaysBitForBit) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_ACCUMULATE, 2);
        model.context.commit();
        double before = 0;
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            if (step == 0) model.set(0, 0.1 + rank);
            if (step == 0) model.context.grad_ready(0);
            model.set(1, 1);
            model.context.grad_ready(1);
            end_step(model.context);
            if (step == 0) before = model.grad(0)[0];
            EXPECT_TRUE(model.holds(0, before)) << at_step(step);
            EXPECT_EQ(model.context.used(0), step == 0);
        }
    });
}

// A program that runs forward passes and ignores what comes out owes libddp nothing.
TEST_P(Unused, AnIgnoredOutputNeedsNoBackwardPass) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::uint32_t flags : {0u, std::uint32_t{DDP_CONTEXT_FIND_UNUSED}}) {
            Trainee net(group, view(), with_flags(flags));
            std::vector<double> buffer(2, rank);
            net.context.add_buffer<double>("running", {2}, buffer.data());
            net.context.commit();
            const Batch batch = make_batch(3, static_cast<std::size_t>(world()));
            for (int round = 0; round < 2; ++round) {
                for (int ignored = 0; ignored < 4; ++ignored) net.context.step_begin();
                for (int step = 0; step < 3; ++step) {
                    net.context.step_begin();
                    net.zero_grads();
                    net.backward(share_of(batch, rank, world()));
                    end_step(net.context);
                    net.expect_gradients(gradients_of(net.values, batch), at_step(step));
                }
            }
        }
    });
}

// Whether a gradient is defined on any rank is what a single process on the global batch would see.
// Any graph, step by step, the same dice on every rank.
TEST_P(Unused, UndefinedGradientsAreTheSameAsInOneProcess) {
    const Graph graph = [](int rank, int step) {
        std::mt19937 dice(static_cast<unsigned>(1 + rank + 97 * step));
        std::set<ddp_param> used;
        for (ddp_param i = 0; i < 6; ++i)
            if (dice() % 3 == 0) used.insert(i);
        return used;
    };
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED, 6);
        model.context.commit();
        for (int step = 0; step < 12; ++step) {
            model.context.step_begin();
            model.backward(graph, step, (rank + step) % 2 == 0);
            end_step(model.context);
            model.expect_step(graph, step);
        }
    });
}

// A parameter of two modules, of which a step may use none, one or both.
TEST_P(Unused, ASharedParameterMayBeUsedByOneOfItsModules) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Replica<double> model(group, view(), with_flags(DDP_CONTEXT_FIND_UNUSED));
        const ddp_param weight = model.add("weight", {4});
        const ddp_param shared = model.add("bias", {2}, {}, 0, 2);
        const ddp_param never = model.add("never", {3});
        model.context.commit();
        model.set(never, 9);
        for (int step = 0; step < 8; ++step) {
            // How many modules use it: on this rank, and the sum over ranks of what they add.
            auto modules = [&](int r) {
                return (r + step) % 4 == 3 ? 2 : (r + step) % 4 == 2 ? 0 : 1;
            };
            double sum = 0;
            bool any = false;
            for (int r = 0; r < world(); ++r)
                sum += 10.0 * (r + 1) * modules(r), any = any || modules(r) > 0;
            model.context.step_begin();
            model.set(weight, 5);
            model.set(shared, 0);
            for (int module = 0; module < modules(rank); ++module) {
                for (std::size_t k = 0; k < 2; ++k) model.grad(shared)[k] += 10.0 * (rank + 1);
                model.context.grad_ready(shared);
            }
            model.context.grad_ready(weight);
            end_step(model.context);
            expect_near(model.grad(shared), std::vector<double>(2, sum / world()), at_step(step));
            EXPECT_EQ(model.context.used(shared), any);
            EXPECT_TRUE(model.holds(weight, 5));
            EXPECT_TRUE(model.holds(never, 9));
        }
    });
}

// Without DDP_CONTEXT_FIND_UNUSED the end of the very step tells every rank, and names the
// parameters.
TEST_P(Unused, WithoutPermissionTheyAreNamedAtOnce) {
    on_ranks(ranks(), [&](int, ddp_group* group) {
        Trainee net(group, view());
        const ddp_param first = net.add("third.weight", {5, 2});
        net.add("third.bias", {2});
        const ddp::Error error = error_of([&] {
            net.context.commit();
            for (ddp_param i = 0; i < first; ++i) net.context.grad_ready(i);
            end_step(net.context);
        });
        EXPECT_EQ(error.status(), DDP_ERROR_MISSING_GRADIENT) << error.what();
        EXPECT_EQ(error.param(), first);
        EXPECT_EQ(error.step(), 0);
    });
}

// A step that has ended leaves nothing behind: what is only allowed between steps is allowed again.
TEST_P(Unused, AStepThatHasEndedIsOver) {
    on_ranks(ranks(), [&](int, ddp_group* group) {
        Branches model(group, view(), DDP_CONTEXT_FIND_UNUSED, 3);
        model.context.commit();
        auto between_steps_only = [&](bool allowed) {
            const ddp_status expected = allowed ? DDP_OK : DDP_ERROR_INVALID_STATE;
            std::int32_t used = 0;
            EXPECT_EQ(ddp_set_sync(model.context.get(), 1, nullptr), expected);
            EXPECT_EQ(ddp_step_begin(model.context.get(), nullptr), expected);
            EXPECT_EQ(ddp_param_used(model.context.get(), 1, &used, nullptr), expected);
        };
        for (int step = 0; step < 3; ++step) {
            model.context.grad_ready(1);
            between_steps_only(false);
            if (GetParam().async) {
                model.context.finalize_async();
                EXPECT_EQ(ddp_grad_ready(model.context.get(), 0, nullptr), DDP_ERROR_INVALID_STATE);
                EXPECT_EQ(ddp_finalize_async(model.context.get(), nullptr),
                          DDP_ERROR_INVALID_STATE);
                between_steps_only(false);
            }
            model.context.finalize();
            EXPECT_EQ(ddp_wait_param(model.context.get(), 1, nullptr), DDP_ERROR_INVALID_STATE);
            between_steps_only(true);
            EXPECT_EQ(model.context.stats().steps, step + 1);
        }
    });
}

}  // namespace unused_test
