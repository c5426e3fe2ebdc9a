// Timing loops together, with ranks that are made up.
#include "measure.h"

#include <gtest/gtest.h>

#include <string>

namespace bench {
namespace {

// Rank 0 of a job whose other rank always needs 7 ms.
Ranks ranks_with_a_slow_one(int& barriers) {
    return {[&barriers] { ++barriers; }, [](std::int64_t&) {},
            [](std::vector<double>& values) {
                for (double& value : values) value = std::max(value, 7.0);
            }};
}

TEST(Measure, LoopsTakeTurnsAndTheSlowestRankCounts) {
    int barriers = 0;
    std::string order;
    const Iteration fast = [&] { return order += 'f', 1.0; };
    const Iteration slow = [&] { return order += 's', 10.0; };
    const auto series = measure(ranks_with_a_slow_one(barriers), {10, 1.0}, {fast, slow});
    ASSERT_EQ(series.size(), 2u);
    EXPECT_EQ(series[0], std::vector<double>(10, 7.0));
    EXPECT_EQ(series[1], std::vector<double>(10, 10.0));
    EXPECT_EQ(order, "fffsss" + std::string("ffssffssffssffssffss"));
    EXPECT_EQ(barriers, 2 + 2 * 5);
}

TEST(Measure, RankZeroDecidesHowOften) {
    int barriers = 0;
    Ranks ranks = ranks_with_a_slow_one(barriers);
    ranks.broadcast = [](std::int64_t& count) { count = 13; };
    EXPECT_EQ(measure(ranks, {0, 0.001}, {[] { return 1.0; }})[0].size(), 13u);
}

TEST(Measure, AutomaticallyAtLeastTen) {
    int barriers = 0;
    EXPECT_GE(measure(ranks_with_a_slow_one(barriers), {0, 1e-9}, {[] { return 1.0; }})[0].size(),
              10u);
}

TEST(Measure, WhatLoopsNoteCountsWithTheirTimes) {
    int barriers = 0;
    std::vector<double> noted;
    const Iteration loop = [&] { return noted.push_back(static_cast<double>(noted.size())), 1.0; };
    const auto series = measure(ranks_with_a_slow_one(barriers), {10, 1.0}, {loop});
    const std::vector<double> expected{3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    EXPECT_EQ(counted(noted), expected);
    EXPECT_EQ(series[0].size(), expected.size());
    EXPECT_TRUE(counted({1, 2}).empty());
}

}  // namespace
}  // namespace bench
