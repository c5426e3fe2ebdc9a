// Order statistics. Expected values are those of numpy.percentile.
#include "statistics.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace bench {
namespace {

TEST(Statistics, MedianOfOddAndEvenSeries) {
    EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
    EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
    EXPECT_DOUBLE_EQ(median({7}), 7);
}

TEST(Statistics, PercentilesInterpolate) {
    const std::vector<double> series{10, 0, 5, 20};
    EXPECT_DOUBLE_EQ(percentile(series, 0), 0);
    EXPECT_DOUBLE_EQ(percentile(series, 0.1), 1.5);
    EXPECT_DOUBLE_EQ(percentile(series, 0.5), 7.5);
    EXPECT_DOUBLE_EQ(percentile(series, 0.9), 17);
    EXPECT_DOUBLE_EQ(percentile(series, 1), 20);
}

TEST(Statistics, SummaryHoldsAllFour) {
    const Summary summary = summarize({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    EXPECT_DOUBLE_EQ(summary.p10, 2);
    EXPECT_DOUBLE_EQ(summary.median, 6);
    EXPECT_DOUBLE_EQ(summary.p90, 10);
    EXPECT_DOUBLE_EQ(summary.p99, 10.9);
}

TEST(Statistics, RefusesWhatHasNoAnswer) {
    EXPECT_THROW(median({}), std::invalid_argument);
    EXPECT_THROW(percentile({1}, 1.01), std::invalid_argument);
    EXPECT_THROW(percentile({1}, -0.01), std::invalid_argument);
    EXPECT_THROW(percentile({1}, std::numeric_limits<double>::quiet_NaN()), std::invalid_argument);
}

}  // namespace
}  // namespace bench
