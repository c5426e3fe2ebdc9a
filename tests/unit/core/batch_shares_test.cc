// Shares of a batch against a plain reference, which gives out one unit after another.
#include "core/batch_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace libddp {
namespace {

using Shares = std::vector<std::int64_t>;

// The next unit goes to the rank that ends first with it.
Shares one_by_one(std::int64_t units, const Shares& cost, const Shares& most) {
    Shares shares(cost.size(), 1);
    for (auto left = units - static_cast<std::int64_t>(cost.size()); left > 0; --left) {
        std::size_t best = cost.size();
        for (std::size_t r = 0; r < cost.size(); ++r) {
            if (shares[r] == most[r]) continue;
            if (best == cost.size() || (shares[r] + 1) * cost[r] < (shares[best] + 1) * cost[best])
                best = r;
        }
        ++shares[best];
    }
    return shares;
}

std::int64_t time_of(const Shares& shares, const Shares& cost) {
    std::int64_t time = 0;
    for (std::size_t r = 0; r < shares.size(); ++r) time = std::max(time, shares[r] * cost[r]);
    return time;
}

std::int64_t sum(const Shares& shares) {
    return std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
}

void expect_valid(const Shares& shares, std::int64_t units, const Shares& most) {
    EXPECT_EQ(sum(shares), units);
    for (std::size_t r = 0; r < shares.size(); ++r) {
        EXPECT_GE(shares[r], 1);
        EXPECT_LE(shares[r], most[r]);
    }
}

// A batch, and ranks, which hold it.
struct Job {
    std::int64_t units;
    Shares cost, most;
};

class Jobs {
public:
    Job next() {
        const auto world = static_cast<std::size_t>(number(1, 9));
        Job job{};
        for (std::size_t r = 0; r < world; ++r) {
            job.cost.push_back(number(1, random_() % 2 ? 5 : 1'000'000));
            job.most.push_back(random_() % 2 ? number(1, 30) : 1000);
        }
        job.units =
            number(static_cast<std::int64_t>(world), std::min<std::int64_t>(sum(job.most), 300));
        for (std::int64_t& one : job.most) one = std::min(one, job.units);
        return job;
    }
    std::int64_t number(std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
    }

private:
    std::mt19937 random_{47};
};

TEST(FastestShares, AreAsFastAsThoseGivenOutOneByOne) {
    Jobs jobs;
    for (int i = 0; i < 3000; ++i) {
        const Job job = jobs.next();
        const Shares shares = fastest_shares(job.units, job.cost, job.most);
        expect_valid(shares, job.units, job.most);
        ASSERT_EQ(time_of(shares, job.cost),
                  time_of(one_by_one(job.units, job.cost, job.most), job.cost));
    }
}

TEST(FastestShares, AreWhatOneWouldSay) {
    const auto shares = [](std::int64_t units, const Shares& cost, Shares most) {
        if (most.empty()) most.assign(cost.size(), units);
        return fastest_shares(units, cost, most);
    };
    EXPECT_EQ(shares(12, {1, 1, 1}, {}), (Shares{4, 4, 4}));
    EXPECT_EQ(shares(11, {1, 1, 1}, {}), (Shares{4, 4, 3}));
    EXPECT_EQ(shares(12, {1, 3}, {}), (Shares{9, 3}));
    EXPECT_EQ(shares(12, {1, 1'000'000}, {}), (Shares{11, 1}));
    EXPECT_EQ(shares(12, {1, 3}, {5, 12}), (Shares{5, 7}));
    EXPECT_EQ(shares(1, {7}, {}), Shares{1});
    constexpr std::int64_t kGreatest = GlobalBatch::kMostSamples;
    EXPECT_EQ(shares(kGreatest, {1 << 30, 1 << 30}, {}), (Shares{kGreatest / 2, kGreatest / 2}));
    EXPECT_EQ(shares(kGreatest, {1, 1 << 30}, {}), (Shares{kGreatest - 3, 3}));
}

// Shares change where that saves the slowest rank 5 % of its time, and only there.
TEST(BetterShares, StayWhereTheGainIsSmall) {
    Jobs jobs;
    int changed = 0, stayed = 0;
    for (int i = 0; i < 3000; ++i) {
        const Job job = jobs.next();
        Shares now = one_by_one(job.units, Shares(job.cost.size(), 1), job.most);
        if (i % 2) {  // the fastest of ranks that were up to 10 % faster or slower
            Shares before = job.cost;
            for (auto& one : before)
                one = std::max<std::int64_t>(1, one * jobs.number(90, 110) / 100);
            now = fastest_shares(job.units, before, job.most);
        }
        const Shares next = better_shares(now, job.cost, job.most);
        expect_valid(next, job.units, job.most);
        const Shares fastest = one_by_one(job.units, job.cost, job.most);
        const auto before = time_of(now, job.cost), best = time_of(fastest, job.cost);
        const bool worth = best <= before - before / 20;
        ASSERT_EQ(time_of(next, job.cost), worth ? best : before);
        if (!worth) {
            ASSERT_EQ(next, now);
        }
        ++(worth ? changed : stayed);
    }
    EXPECT_GT(changed, 500);
    EXPECT_GT(stayed, 500);
}

// Other ranks send costs, so any positive number must do.
TEST(BetterShares, OfCostsOfAnySize) {
    constexpr std::int64_t kHuge = INT64_MAX;
    EXPECT_EQ(better_shares({6, 6}, {kHuge / 3, kHuge}, {12, 12}), (Shares{9, 3}));
    EXPECT_EQ(better_shares({6, 6}, {1, kHuge}, {12, 12}), (Shares{11, 1}));
    EXPECT_EQ(better_shares({6, 6}, {kHuge, kHuge}, {12, 12}), (Shares{6, 6}));
}

}  // namespace
}  // namespace libddp
