// Participation in a step: weights, frozen and skipped parameters, ranks without inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace participation_test {

ddp_context_options with(std::uint32_t flags, ddp_reduction reduction = DDP_REDUCTION_MEAN) {
    auto options = ddp::Context::defaults();
    options.flags = flags;
    options.reduction = reduction;
    options.bucket_cap_bytes = 64;  // nearly every parameter in a bucket of its own
    return options;
}

struct Case {
    int world;
    const char* backend;
    bool view;
};

class ParticipationTest : public testing::TestWithParam<Case> {
protected:
    void run(const std::function<void(int rank, ddp_group* group)>& body) {
        on_ranks({GetParam().world, GetParam().backend}, body);
    }
    int world() const { return GetParam().world; }
    bool view() const { return GetParam().view; }
};

INSTANTIATE_TEST_SUITE_P(All, ParticipationTest,
                         testing::Values(Case{1, "threads", true}, Case{2, "threads", true},
                                         Case{3, "threads", false}, Case{4, "threads-plain", true},
                                         Case{2, "threads-single", false},
                                         Case{4, "threads-caller", true}, Case{2, "tcp", true},
                                         Case{3, "tcp", false}, Case{3, "shm", true}),
                         [](const auto& test) {
                             std::string name = test.param.backend +
                                                std::to_string(test.param.world) +
                                                (test.param.view ? "view" : "copy");
                             std::erase(name, '-');
                             return name;
                         });

// Rank r has r + 1 samples; each sample's gradient is its global number. The mean over the global
// batch is known.
TEST_P(ParticipationTest, TheWeightedMeanIsThatOfTheGlobalBatch) {
    run([&](int rank, ddp_group* group) {
        Model model(group, {3, 5}, view(), with(0, DDP_REDUCTION_WEIGHTED_MEAN));
        model.context.commit();
        double total = 0, samples = 0;
        for (int r = 0, number = 0; r < world(); ++r)
            for (int i = 0; i <= r; ++i, ++number) total += number, samples += 1;
        for (int step = 0; step < 2; ++step) {
            model.context.set_weight(rank + 1);
            model.context.step_begin();
            double sum = 0;
            for (int i = 0; i <= rank; ++i) sum += rank * (rank + 1) / 2.0 + i;
            for (int p : {1, 0}) {
                for (std::size_t k = 0; k < model.size(p); ++k)
                    model.grad(p)[k] = static_cast<float>(sum / (rank + 1));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            for (int p : {0, 1})
                for (std::size_t k = 0; k < model.size(p); ++k)
                    EXPECT_NEAR(model.grad(p)[k], total / samples, 1e-6 * total);
        }
    });
}

// ddp_step_begin has told the factor, which must outlast a change of roles before the first
// gradient.
TEST_P(ParticipationTest, WeightsHoldWhenRolesChangeAfterTheStepHasBegun) {
    run([&](int rank, ddp_group* group) {
        Model model(group, {3, 5}, view(), with(0, DDP_REDUCTION_WEIGHTED_MEAN));
        model.context.commit();
        double weights = 0, sum = 0;
        for (int r = 0; r < world(); ++r) weights += r + 1, sum += (r + 1) * (10 + r);
        for (int step = 0; step < 3; ++step) {
            model.context.set_weight(rank + 1);
            model.context.step_begin();
            if (step == 0) model.context.skip({1});
            if (step == 1) model.context.set_frozen({1}, true);
            if (step == 2) model.context.set_frozen({1}, false);
            for (int p : {1, 0}) {
                if (p == 1 && step < 2) continue;
                for (std::size_t k = 0; k < model.size(p); ++k)
                    model.grad(p)[k] = static_cast<float>(10 + rank);
                model.context.grad_ready(p);
            }
            model.context.finalize();
            for (int p = 0; p < (step < 2 ? 1 : 2); ++p)
                for (std::size_t k = 0; k < model.size(p); ++k)
                    EXPECT_NEAR(model.grad(p)[k], sum / weights, 1e-5)
                        << "step " << step << ", parameter " << p;
        }
    });
}

TEST_P(ParticipationTest, AStepWithWeightsHasToBegin) {
    run([&](int, ddp_group* group) {
        Model model(group, {3}, view(), with(0, DDP_REDUCTION_WEIGHTED_MEAN));
        model.context.commit();
        EXPECT_EQ(facts_of([&] { model.context.grad_ready(0); }),
                  (Facts{DDP_ERROR_INVALID_STATE, -1, -1, -1, 0}));
        model.context.set_weight(0);
        EXPECT_THROW(model.context.step_begin(), ddp::Error);  // all weights are 0
        model.context.set_weight(2);
        model.context.step_begin();
        model.fill(0, 4);
        model.context.grad_ready(0);
        model.context.finalize();
        EXPECT_TRUE(model.holds(0, 4));
    });
}

TEST_P(ParticipationTest, FrozenParametersAreNeitherExpectedNorTouched) {
    run([&](int rank, ddp_group* group) {
        auto options = with(0);
        options.bucket_cap_bytes = 1 << 20;
        options.first_bucket_cap_bytes = 1 << 20;
        Model model(group, {4, 4, 4}, view(), options);
        model.context.commit();
        const float mean = static_cast<float>(world() - 1) / 2;
        for (int step = 0; step < 4; ++step) {
            const bool frozen = step == 1 || step == 2;
            if (step == 1) model.context.set_frozen({1}, true);
            if (step == 3) model.context.set_frozen({1}, false);
            if (step == 2) model.context.step_begin();  // now it has a bucket of its own
            model.fill(1, 77);
            for (int p : {2, 1, 0}) {
                if (p == 1 && frozen) continue;
                model.fill(p, static_cast<float>(rank));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            EXPECT_TRUE(model.holds(0, mean));
            EXPECT_TRUE(model.holds(2, mean));
            EXPECT_TRUE(model.holds(1, frozen ? 77 : mean)) << "step " << step;
            EXPECT_EQ(model.context.used(1), !frozen);
            if (step == 2) {
                EXPECT_EQ(model.context.stats().unsent_buckets, 1);
            }
        }
        model.context.set_frozen({0}, true);
        const Facts facts = facts_of([&] { model.context.grad_ready(0); });
        EXPECT_EQ(facts.status, DDP_ERROR_MISMATCH) << facts;
        EXPECT_EQ(facts.param, 0) << facts;
    });
}

// Layer dropping: the authority's choice reaches all ranks and holds for one step.
TEST_P(ParticipationTest, WhatOnlyOneRankFreezesIsNamed) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    for (const bool begins : {false, true})
        for (const bool before : {false, true}) {
            if (begins && before) continue;  // then no rebuild is due
            run([&](int rank, ddp_group* group) {
                Model m(group, {2, 2}, view());
                if (before && rank == 1) m.context.set_frozen({1}, true);
                const Facts facts = facts_of([&] {
                    // each rank has its context before one of them breaks the group
                    m.borrowed.barrier();
                    m.context.commit();
                    if (!before && rank == 1) m.context.set_frozen({1}, true);
                    if (begins) m.context.step_begin();
                    m.context.grad_ready(0);
                    if (rank != 1) m.context.grad_ready(1);
                    m.context.finalize();
                });
                EXPECT_EQ(facts.status, DDP_ERROR_MISMATCH);
                EXPECT_EQ(facts.param, 1) << facts;
                EXPECT_THAT(facts.message,
                            HasSubstr("parameter 'p1' is frozen on rank 1 and not on rank"));
            });
        }
}

TEST_P(ParticipationTest, AnAuthorityChoosesWhatIsSkipped) {
    run([&](int rank, ddp_group* group) {
        Model model(group, {16, 16, 16, 16}, view(), with(0));
        model.context.commit();
        const float mean = static_cast<float>(world() - 1) / 2;
        for (int step = 0; step < 4; ++step) {
            const int chosen = step % 3, authority = step % world();
            if (step < 3)
                model.context.skip(
                    rank == authority ? std::vector<ddp_param>{chosen} : std::vector<ddp_param>{},
                    authority);
            for (int p : {3, 2, 1, 0}) {
                model.fill(p, model.context.skipped(p) ? 50.0f : static_cast<float>(rank));
                if (!model.context.skipped(p)) model.context.grad_ready(p);
            }
            model.context.finalize();
            for (int p : {3, 2, 1, 0}) {
                const bool skipped = step < 3 && p == chosen;
                EXPECT_TRUE(model.holds(p, skipped ? 50 : mean))
                    << "step " << step << ", parameter " << p;
            }
            EXPECT_EQ(model.context.stats().unsent_buckets, step < 3 ? 1 : 0);
        }
    });
}

TEST_P(ParticipationTest, RanksThatSkipDifferentParametersAreTold) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    run([&](int rank, ddp_group* group) {
        Model model(group, {16, 16}, view(), with(0));
        try {
            model.context.commit();  // a rank may still be in it when others disagree
            model.context.skip({rank == 0 ? 0 : 1});
            model.context.grad_ready(rank == 0 ? 1 : 0);
            model.context.finalize();
            ADD_FAILURE() << "no error";
        } catch (const ddp::Error& e) {
            EXPECT_EQ(e.status(), DDP_ERROR_MISMATCH) << e.what();
        }
    });
}

// Rank r has 2 + r inputs; each contributes its step number + 1.
TEST_P(ParticipationTest, RanksWithoutInputsShadowTheOthers) {
    for (std::uint32_t flags : {0u, std::uint32_t{DDP_CONTEXT_DIVIDE_BY_PRESENT},
                                std::uint32_t{DDP_CONTEXT_FIND_UNUSED}}) {
        run([&](int rank, ddp_group* group) {
            Model model(group, {3, 40}, view(), with(DDP_CONTEXT_JOIN | flags));
            model.context.commit();
            for (int epoch = 0; epoch < 2; ++epoch) {
                for (int step = 0; step < 2 + rank; ++step) {
                    model.context.step_begin();
                    const bool second = flags != DDP_CONTEXT_FIND_UNUSED || rank == world() - 1;
                    for (int p : {1, 0}) {
                        if (p == 1 && !second) continue;
                        for (std::size_t k = 0; k < model.size(p); ++k)
                            model.grad(p)[k] = static_cast<float>(12 * (step + 1));
                        model.context.grad_ready(p);
                    }
                    model.context.finalize();
                    const int present = step < 2 ? world() : world() - (step - 1);
                    const int divisor = flags == DDP_CONTEXT_DIVIDE_BY_PRESENT ? present : world();
                    const float both =
                        static_cast<float>(12 * (step + 1) * present) / static_cast<float>(divisor);
                    EXPECT_NEAR(model.grad(0)[0], both, 1e-5) << "step " << step;
                    if (flags == DDP_CONTEXT_FIND_UNUSED) {
                        EXPECT_NEAR(
                            model.grad(1)[0],
                            static_cast<float>(12 * (step + 1)) / static_cast<float>(world()),
                            1e-5);
                    } else {
                        EXPECT_NEAR(model.grad(1)[0], both, 1e-5);
                    }
                    model.data[0][0] = static_cast<float>(100 * rank + step);
                }
                model.context.join();
                EXPECT_EQ(model.data[0][0], static_cast<float>(100 * (world() - 1) + world()))
                    << "the last joiner's model";
            }
        });
    }
}

// The last rank to join is counted from the first step of the group on.
TEST_P(ParticipationTest, TheLastToJoinIsCountedInTheNewGroup) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    run([&](int rank, ddp_group* group) {
        BorrowedGroup old(group);
        const ddp::Group next = old.split(0, rank);
        Model model(group, {3}, view(), with(DDP_CONTEXT_JOIN));
        model.context.commit();
        const auto step = [&] {
            model.context.step_begin();
            model.fill(0, 1);
            model.context.grad_ready(0);
            model.context.finalize();
        };
        const bool last = rank == world() - 1;  // in the old group
        if (last) {
            for (int i = 0; i < 8; ++i) step();
        } else {
            for (int i = 0; i < 5; ++i) step();
            try {
                model.context.join();
                ADD_FAILURE() << "no error";
            } catch (const ddp::Error&) {
            }
        }
        if (last) model.context.abort("a test");
        model.context.set_group(next);
        for (int i = 0; i < (rank == 0 ? 6 : 4); ++i) step();
        model.data[0][0] = static_cast<float>(rank + 1);
        model.context.join();
        EXPECT_EQ(model.data[0][0], 1) << "the model of rank 0";
    });
}

TEST_P(ParticipationTest, AStepOfAJoinedRankCannotBeDiscarded) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    run([&](int rank, ddp_group* group) {
        Model model(group, {3}, view(), with(DDP_CONTEXT_JOIN));
        model.context.commit();
        if (rank != 1) {
            model.context.step_begin();
            EXPECT_EQ(facts_of([&] { model.context.discard_step(); }),
                      (Facts{DDP_ERROR_UNSUPPORTED, 1}));
            model.fill(0, static_cast<float>(world()));
            model.context.grad_ready(0);
            model.context.finalize();
            EXPECT_FLOAT_EQ(model.grad(0)[0], static_cast<float>(world() - 1));
        }
        model.context.join();
        EXPECT_EQ(facts_of([&] { model.context.discard_step(); }),
                  (Facts{DDP_ERROR_INVALID_STATE, -1, -1, -1, 1}));
        model.context.step_begin();
        model.context.discard_step();
    });
}

TEST_P(ParticipationTest, AllStopWhenOneRankHasNoMoreInputs) {
    if (world() == 1) GTEST_SKIP() << "needs two ranks";
    run([&](int rank, ddp_group* group) {
        Model model(group, {3}, view(), with(DDP_CONTEXT_JOIN | DDP_CONTEXT_STOP_AT_FIRST_JOIN));
        model.context.commit();
        try {
            for (int step = 0; step < (rank == 1 ? 1 : 3); ++step) {
                model.context.step_begin();
                model.fill(0, 1);
                model.context.grad_ready(0);
                model.context.finalize();
                EXPECT_EQ(step, 0);
            }
            model.context.join();
            ADD_FAILURE() << "no error";
        } catch (const ddp::Error& e) {
            EXPECT_EQ(e.status(), DDP_ERROR_UNEVEN_INPUTS) << e.what();
            EXPECT_EQ(e.rank(), 1);
        }
        model.context.step_begin();  // the context is as good as before
        model.fill(0, static_cast<float>(rank));
        model.context.grad_ready(0);
        model.context.finalize();
        EXPECT_TRUE(model.holds(0, static_cast<float>(world() - 1) / 2));
    });
}

TEST_P(ParticipationTest, AStaticGraphMayNotChange) {
    run([&](int rank, ddp_group* group) {
        Model model(group, {16, 16, 16}, view(), with(DDP_CONTEXT_STATIC_GRAPH));
        model.context.commit();
        const bool uses_first = rank == 0;
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            for (int p : {1, 0}) model.fill(p, static_cast<float>(world()));
            model.fill(2, 99);
            model.context.grad_ready(1);
            if (uses_first) model.context.grad_ready(0);
            model.context.finalize();
            EXPECT_TRUE(model.holds(2, 99)) << "step " << step;
            EXPECT_FLOAT_EQ(model.grad(0)[0], 1);
            EXPECT_FALSE(model.context.used(2));
            EXPECT_TRUE(model.context.used(0));
            if (step > 0) {
                EXPECT_EQ(model.context.stats().unsent_buckets, 1);
            }
        }
        EXPECT_EQ(facts_of([&] { model.context.grad_ready(2); }),
                  (Facts{DDP_ERROR_MISMATCH, -1, 2, 2, 3}));
        const Facts facts = facts_of([&] {
            model.borrowed.barrier();  // the next error breaks the group for all
            model.context.finalize();
        });
        EXPECT_EQ(facts.status, DDP_ERROR_MISSING_GRADIENT) << facts;
        EXPECT_GE(facts.param, 0) << facts;
    });
}

}  // namespace participation_test
