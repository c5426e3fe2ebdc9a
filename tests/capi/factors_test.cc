// Gradients announced as two factors, against what the sums of their outer products are.
#include "capi/factors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

#include "support/error_of.h"

using testing::Each;
using testing::ElementsAre;

namespace factors_test {

INSTANTIATE_TEST_SUITE_P(
    All, FactorsTest,
    testing::Combine(testing::Values(Ranks{1, "threads"}, Ranks{2, "threads"},
                                     Ranks{3, "threads-plain"}, Ranks{4, "threads-single"},
                                     Ranks{3, "threads-caller"}, Ranks{3, "tcp"}, Ranks{3, "shm"}),
                     testing::Bool()));

TEST_P(FactorsTest, FewRowsAreGatheredAndManyMultipliedFirst) {
    run([&](Rank& r) {
        for (std::size_t rows = 0; rows < 9; ++rows) {
            const auto before = r.sent();
            r.step([&] { r.give(rows, static_cast<int>(rows)); });
            Dense expected;
            for (int other = 0; other < world(); ++other)
                expected.add(other, rows, static_cast<int>(rows));
            r.expect_mean(expected);
            const std::size_t one = rows < kFewer ? rows * (kN + kM) : kN * kM;
            EXPECT_EQ(r.sent() - before, sizeof(float) * (one + kHead)) << rows << " rows";
        }
    });
}

TEST_P(FactorsTest, RanksMayHaveDifferentNumbersOfRows) {
    run([&](Rank& r) {
        for (std::size_t least : {0u, 1u, 5u}) {
            const auto rows = [least](int rank) { return least + static_cast<std::size_t>(rank); };
            const auto before = r.sent();
            r.step([&] { r.give(rows(r.rank), 3); });
            Dense expected;
            for (int other = 0; other < world(); ++other) expected.add(other, rows(other), 3);
            r.expect_mean(expected);
            const std::size_t most = rows(world() - 1);
            const std::size_t one = most < kFewer ? most * (kN + kM) : kN * kM;
            EXPECT_EQ(r.sent() - before, sizeof(float) * (one + kHead)) << most << " rows";
        }
    });
}

TEST_P(FactorsTest, AnyRankMayGiveAWholeGradientInAnyStep) {
    run([&](Rank& r) {
        for (int step = 0; step < 4; ++step) {  // rank 0 does; the last; all; none
            const bool whole = step == 0   ? r.rank == 0
                               : step == 1 ? r.rank == world() - 1
                                           : step == 2;
            const auto before = r.sent();
            r.step([&] { whole ? r.give_whole(2, step) : r.give(2, step); });
            Dense expected;
            for (int other = 0; other < world(); ++other) expected.add(other, 2, step);
            r.expect_mean(expected);
            EXPECT_EQ(r.sent() - before,
                      sizeof(float) * ((step < 3 ? kN * kM : 2 * (kN + kM)) + kHead));
        }
    });
}

TEST_P(FactorsTest, SumsInsteadOfMeans) {
    run(
        [&](Rank& r) {
            for (std::size_t rows : {2u, 8u}) {
                r.step([&] { r.give(rows, 1); });
                Dense expected;
                for (int other = 0; other < world(); ++other) expected.add(other, rows, 1);
                r.expect_sum(expected);
            }
        },
        0, DDP_REDUCTION_SUM);
}

TEST_P(FactorsTest, UnsyncedStepsAddUp) {
    run([&](Rank& r) {
        for (std::size_t rows : {1u, 4u, 7u}) {  // 3, 12 and 21 in the end
            Dense expected;
            for (int step = 0; step < 3; ++step) {
                r.context.set_sync(step == 2);
                r.step([&] { r.give(rows, step); });
                for (int other = 0; other < world(); ++other) expected.add(other, rows, step);
            }
            r.expect_mean(expected);
        }
        // Nothing of it is left.
        r.step([&] { r.give(0, 0); });
        r.expect_mean({});
    });
}

TEST_P(FactorsTest, UnsyncedStepsAloneCount) {
    run([&](Rank& r) {
        r.context.set_sync(false);
        r.step([&] { r.give(2, 5); });
        r.context.set_sync(true);
        r.step([] {});
        Dense expected;
        for (int other = 0; other < world(); ++other) expected.add(other, 2, 5);
        r.expect_mean(expected);
    });
}

TEST_P(FactorsTest, FactorsAndWholeGradientsAddUp) {
    run([&](Rank& r) {
        // In the program's memory the gradient of step 1; factors of steps 0 and 2.
        Dense expected;
        for (int step = 0; step < 3; ++step) {
            r.context.set_sync(step == 2);
            r.step([&] { step == 1 ? r.give_whole(1, step) : r.give(1, step); });
            for (int other = 0; other < world(); ++other) expected.add(other, 1, step);
        }
        r.expect_mean(expected);
    });
}

TEST_P(FactorsTest, SeveralUsesAddUp) {
    run(
        [&](Rank& r) {
            for (int step = 0; step < 3; ++step) {  // factors twice; and once a gradient
                r.step([&] {
                    r.give(2, step);
                    step == 2 && r.rank == 0 ? r.give_whole(1, step) : r.give(1, step);
                });
                Dense expected;
                for (int other = 0; other < world(); ++other) {
                    expected.add(other, 2, step);
                    expected.add(other, 1, step);
                }
                r.expect_mean(expected);
            }
            EXPECT_EQ(facts_of([&] { r.step([&] { r.give(1, 0), r.give(1, 0), r.give(1, 0); }); }),
                      (Facts{DDP_ERROR_INVALID_STATE, -1, 1, 0, 3}));
            // a rank that frees its context in the middle of a step ends the group
            r.context.discard_step();
        },
        0, DDP_REDUCTION_MEAN, 2);
}

TEST_P(FactorsTest, UnusedOnSomeRanksOrAll) {
    for (std::uint32_t flags : {0u, std::uint32_t{DDP_CONTEXT_SKIP_UNUSED_BUCKETS},
                                std::uint32_t{DDP_CONTEXT_KEEP_LOCAL_UNUSED}})
        run(
            [&](Rank& r) {
                // used by all, by the last rank only, by none; marked or not
                for (int step = 0; step < 6; ++step) {
                    const int way = step % 3;
                    const bool uses = way == 0 || (way == 1 && r.rank == world() - 1);
                    std::fill_n(r.gradient(), kN * kM, 7.0f);
                    r.step([&] {
                        if (uses)
                            r.give(2, step);
                        else if (step >= 3)
                            r.context.mark_unused({1});
                    });
                    EXPECT_EQ(r.context.used(1), way < 2);
                    if (way == 2 || (flags == DDP_CONTEXT_KEEP_LOCAL_UNUSED && !uses)) {
                        EXPECT_THAT(r.result(), Each(7.0f)) << "step " << step;
                        continue;
                    }
                    Dense expected;
                    for (int other = way == 0 ? 0 : world() - 1; other < world(); ++other)
                        expected.add(other, 2, step);
                    r.expect_mean(expected);
                }
            },
            DDP_CONTEXT_FIND_UNUSED | flags);
}

TEST_P(FactorsTest, StaticGraphs) {
    run(
        [&](Rank& r) {
            for (int step = 0; step < 3; ++step) {
                r.step([&] {
                    if (r.rank == world() - 1) r.give(3, step);
                });
                Dense expected;
                expected.add(world() - 1, 3, step);
                r.expect_mean(expected);
            }
        },
        DDP_CONTEXT_STATIC_GRAPH);
}

TEST_P(FactorsTest, FrozenAndSkipped) {
    run([&](Rank& r) {
        Dense expected;
        for (int other = 0; other < world(); ++other) expected.add(other, 2, 1);
        r.step([&] { r.give(2, 1); });
        for (bool freeze : {true, false}) {
            freeze ? r.context.set_frozen({1}, true) : r.context.skip({1});
            std::fill_n(r.gradient(), kN * kM, 5.0f);
            const auto before = r.sent();
            r.step([] {});
            EXPECT_THAT(r.result(), Each(5.0f));
            EXPECT_EQ(r.sent() - before, sizeof(float) * kHead);
            if (freeze) r.context.set_frozen({1}, false);
            r.step([&] { r.give(2, 1); });
            r.expect_mean(expected);
        }
    });
}

TEST_P(FactorsTest, DiscardedStepsLeaveNothing) {
    run([&](Rank& r) {
        for (bool sync : {false, true}) {
            r.context.set_sync(sync);
            r.context.step_begin();
            if (r.rank == 0) r.give(sync ? 2 : 9, 1);
            r.context.discard_step();
        }
        r.step([&] { r.give(1, 2); });
        Dense expected;
        for (int other = 0; other < world(); ++other) expected.add(other, 1, 2);
        r.expect_mean(expected);
    });
}

TEST_P(FactorsTest, WeightedMeans) {
    run(
        [&](Rank& r) {
            for (std::size_t rows : {2u, 8u})
                for (int whole = 0; whole < 2; ++whole) {
                    // Weights 0, 1, 2, 3; alone: 1. The gradient of a rank of weight 0 is not even
                    // looked at.
                    const auto weight = [this](int rank) { return world() == 1 ? 1 : rank; };
                    r.context.set_weight(weight(r.rank));
                    r.step([&] {
                        if (weight(r.rank) == 0)
                            r.give_infinity(rows);
                        else if (whole == 1 && r.rank == 1)
                            r.give_whole(rows, 4);
                        else
                            r.give(rows, 4);
                    });
                    double total = 0;
                    std::vector<double> expected(kN * kM);
                    for (int other = 0; other < world(); ++other) {
                        Dense one;
                        one.add(other, rows, 4);
                        total += weight(other);
                        for (std::size_t i = 0; i < expected.size(); ++i)
                            expected[i] += weight(other) * one.values[i];
                    }
                    for (std::size_t i = 0; i < expected.size(); ++i)
                        ASSERT_NEAR(r.gradient()[i], expected[i] / total,
                                    1e-5 * std::fabs(expected[i]) + 1e-5);
                }
        },
        0, DDP_REDUCTION_WEIGHTED_MEAN);
}

TEST_P(FactorsTest, RanksWithoutInputs) {
    for (std::uint32_t flags : {0u, std::uint32_t{DDP_CONTEXT_DIVIDE_BY_PRESENT}})
        run(
            [&](Rank& r) {
                const int steps = r.rank + 1;
                for (int step = 0; step < steps; ++step) {
                    r.step([&] { r.give(step % 2 == 0 ? 2 : 7, step); });
                    Dense expected;
                    for (int other = step; other < world(); ++other)
                        expected.add(other, step % 2 == 0 ? 2 : 7, step);
                    r.expect_near(expected, flags ? world() - step : world());
                }
                r.context.join();
            },
            DDP_CONTEXT_JOIN | flags);
}

TEST_P(FactorsTest, ReturnsTheSameBitsOnEveryRankUpToRoundingThoseOfADenseOne) {
    std::map<int, std::vector<float>> results;
    std::mutex mutex;
    for (std::size_t rows : {3u, 40u}) {
        run([&](Rank& r) {
            r.step([&] { r.give_real(rows); });
            Dense expected;
            for (int other = 0; other < world(); ++other) expected.add_real(other, rows);
            // Products of numbers up to 1: at most one rounding of the sum so far for each term.
            const double terms = static_cast<double>(rows) * world();
            for (std::size_t i = 0; i < kN * kM; ++i)
                ASSERT_NEAR(r.gradient()[i], expected.values[i] / world(), 0x1p-23 * terms * terms);
            const std::lock_guard lock(mutex);
            results[r.rank] = r.result();
        });
        for (const auto& [rank, result] : results) EXPECT_EQ(result, results[0]) << "rank " << rank;
    }
}

TEST_P(FactorsTest, HooksDoNotSeeThem) {
    run([&](Rank& r) {
        std::vector<int> seen, last;
        r.context.set_comm_hook([&](ddp_group*, ddp_bucket* bucket) {
            ddp_tensor gradient{};
            gradient.struct_size = sizeof gradient;
            ddp::detail::call(ddp_bucket_gradient, static_cast<const ddp_bucket*>(bucket), 0,
                              &gradient);
            seen.push_back(gradient.param);
            last.push_back(ddp_bucket_is_last(bucket));
            return ddp::Work();
        });
        for (std::size_t rows : {2u, 8u}) {
            r.step([&] { r.give(rows, 1); });
            Dense expected;
            for (int other = 0; other < world(); ++other) expected.add(other, rows, 1);
            r.expect_mean(expected);
        }
        EXPECT_THAT(seen, ElementsAre(0, 0));
        EXPECT_THAT(last, ElementsAre(1, 1));
    });
}

// A group that breaks while rows wait: the next one starts without them.
TEST_P(FactorsTest, AnotherGroupStartsWithoutThem) {
    run([&](Rank& r) {
        const auto other = r.borrowed.split(0, r.rank);
        r.context.set_sync(false);
        r.step([&] { r.give(2, 1); });
        r.context.set_group(other);
        r.context.set_sync(true);
        r.step([&] { r.give(1, 3); });
        Dense expected;
        for (int rank = 0; rank < world(); ++rank) expected.add(rank, 1, 3);
        r.expect_mean(expected);
    });
}

// Shapes at the edge: a vector, no rows, no columns; and a matrix. Rank r gives r + 1 rows of ones
// times 12, of twos.
TEST(FactorTypes, DoublePrecisionAndEmptyShapes) {
    const std::vector<std::vector<std::int64_t>> shapes{{7}, {0, 4}, {4, 0}, {6, 3, 2}};
    for (const char* backend : {"threads", "threads-plain", "tcp"})
        on_ranks({3, backend}, [&](int rank, ddp_group* group) {
            BorrowedGroup borrowed(group);
            ddp::Context context(borrowed);
            std::vector<std::vector<double>> gradients;
            for (std::size_t i = 0; i < shapes.size(); ++i) {
                std::size_t count = 1;
                for (auto extent : shapes[i]) count *= static_cast<std::size_t>(extent);
                gradients.emplace_back(count, -1);
                context.add_param<double>("p" + std::to_string(i), shapes[i], nullptr,
                                          gradients[i].data(), DDP_PARAM_FACTORED);
            }
            context.commit();
            const std::vector<double> left(40, 12), right(40, 2);
            for (int step = 0; step < 2; ++step) {
                for (int i = 0; i < 4; ++i)
                    context.factors_grad_ready(i, left.data(), right.data(),
                                               static_cast<std::size_t>(rank) + 1);
                context.finalize();
                for (const auto& gradient : gradients) EXPECT_THAT(gradient, Each(48));
            }
        });
}

TEST(FactorThreads, DifferentParametersAtOnce) {
    constexpr int kParams = 6, kSteps = 20;
    on_ranks({2, "tcp"}, [&](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        for (int i = 0; i < kParams; ++i)
            context.add_param<float>("p" + std::to_string(i), {kN, kM}, nullptr, nullptr,
                                     DDP_PARAM_FACTORED);
        context.commit();
        for (int step = 0; step < kSteps; ++step) {
            context.step_begin();
            std::vector<std::thread> threads;
            for (int i = 0; i < kParams; ++i)
                threads.emplace_back([&, i] {
                    const auto rows = static_cast<std::size_t>((i + step) % 8);
                    const auto f = factors_of(rank, rows, step + i);
                    context.factors_grad_ready(i, f.left.data(), f.right.data(), rows);
                });
            for (auto& thread : threads) thread.join();
            context.finalize();
            for (int i = 0; i < kParams; ++i) {
                Dense sum;
                for (int r = 0; r < 2; ++r)
                    sum.add(r, static_cast<std::size_t>((i + step) % 8), step + i);
                for (std::size_t k = 0; k < kN * kM; ++k)
                    ASSERT_EQ(context.grad_view<float>(i)[k],
                              static_cast<float>(sum.values[k] / 2));
            }
        }
    });
}

}  // namespace factors_test
