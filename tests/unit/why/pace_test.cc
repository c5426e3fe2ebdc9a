// The slow rank, from the times at which ranks come to collectives.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <random>

#include "story.h"
#include "why/lateness.h"

namespace libddp::record {
namespace {

using ::testing::HasSubstr;

struct Plan {
    std::int32_t world = 3;
    std::int64_t steps = 40;
    double transfer_ms = 1;
    std::uint64_t bytes = 1000;
    std::function<double(std::int32_t rank, std::int64_t step)> compute_ms = [](auto...) {
        return 10.0;
    };
    std::function<double(std::int32_t rank, std::int64_t step)> hook_ms = [](auto...) {
        return 0.0;
    };
    std::function<double(std::int32_t rank)> ends_later_ms = [](auto...) { return 0.0; };
};

// Each step computes, calls the hook of its one bucket, and waits for its collective.
std::vector<ProcessRecord> run(const Plan& plan) {
    auto all = stories(plan.world);
    std::vector<double> begin(static_cast<std::size_t>(plan.world), 10);
    for (std::int64_t step = 0; step < plan.steps; ++step) {
        std::vector<double> came;
        for (std::int32_t rank = 0; rank < plan.world; ++rank) {
            const double began = begin[static_cast<std::size_t>(rank)],
                         computed = began + plan.compute_ms(rank, step);
            const double hooked = computed + plan.hook_ms(rank, step);
            Story& story = all[static_cast<std::size_t>(rank)];
            story.begin_step(step, began)
                .launch(step, 0, computed)
                .end_hook(step, 0, computed, hooked);
            story.end_backward(step, hooked).begin(step, hooked, step, 0, plan.bytes);
            came.push_back(hooked);
        }
        const double end = *std::max_element(came.begin(), came.end()) + plan.transfer_ms;
        for (std::int32_t rank = 0; rank < plan.world; ++rank) {
            const auto i = static_cast<std::size_t>(rank);
            begin[i] = end + plan.ends_later_ms(rank);
            all[i].end(step, came[i], begin[i], step, 0, plan.bytes).end_step(step, begin[i]);
        }
    }
    return records_of(all);
}

Pace pace_of(const std::vector<ProcessRecord>& records) {
    const auto groups = find_groups(records, {});
    const auto pace = find_pace(groups.at(0));
    return pace ? *pace : Pace{};
}

TEST(Pace, NeedsSomeSteps) {
    Plan plan;
    plan.steps = 5;
    const auto records = run(plan);
    EXPECT_FALSE(find_pace(find_groups(records, {}).at(0)));
}

TEST(Pace, OfEqualRanksBlamesNobody) {
    const Pace pace = pace_of(run({}));
    EXPECT_EQ(pace.steps, 38);
    EXPECT_NEAR(pace.step, 11 * kMs, 1000);
    EXPECT_FALSE(pace.slow);
    EXPECT_EQ(pace.sentence, "");
}

TEST(Pace, FindsSlowCompute) {
    Plan plan;
    plan.compute_ms = [](std::int32_t rank, std::int64_t) { return rank == 1 ? 30.0 : 10.0; };
    const Pace pace = pace_of(run(plan));
    ASSERT_EQ(pace.slow, 1);
    EXPECT_NEAR(pace.ranks[1].late, 20 * kMs, 1000);
    EXPECT_THAT(pace.sentence, HasSubstr("rank 1 is slow: the others wait 20 ms for it"));
    EXPECT_THAT(pace.sentence, HasSubstr("in its own code"));
}

TEST(Pace, FindsASlowHook) {
    Plan plan;
    plan.hook_ms = [](std::int32_t rank, std::int64_t) { return rank == 2 ? 20.0 : 0.1; };
    const Pace pace = pace_of(run(plan));
    ASSERT_EQ(pace.slow, 2);
    EXPECT_THAT(pace.sentence, HasSubstr("in its communication hook"));
}

TEST(Pace, FindsASlowRankAmongRandomTimes) {
    std::mt19937 random(1);
    std::uniform_real_distribution<double> jitter(0, 20);
    Plan plan;
    plan.steps = 100;
    plan.compute_ms = [&](std::int32_t rank, std::int64_t) {
        return 10 + jitter(random) + (rank == 1 ? 20 : 0);
    };
    EXPECT_EQ(pace_of(run(plan)).slow, 1);
}

TEST(Pace, OfRandomTimesBlamesNobody) {
    for (unsigned seed = 0; seed < 400; ++seed) {
        std::mt19937 random(seed);
        std::exponential_distribution<double> jitter(0.2);
        Plan plan;
        plan.world = static_cast<std::int32_t>(2 + seed % 3);
        plan.steps = 12 + seed % 50;
        plan.compute_ms = [&](std::int32_t, std::int64_t) { return 5 + jitter(random); };
        const Pace pace = pace_of(run(plan));
        EXPECT_FALSE(pace.slow) << "seed " << seed << ": " << pace.sentence;
        EXPECT_EQ(pace.sentence, "") << "seed " << seed;
    }
}

TEST(Pace, FindsCollectivesThatTakeMostOfAStep) {
    Plan plan;
    plan.transfer_ms = 80;
    plan.bytes = 8'000'000;
    auto records = run(plan);
    EXPECT_THAT(pace_of(records).sentence,
                HasSubstr("collectives take most of each step: 80 ms of 90 ms (38 steps, 8.0 MB in "
                          "each), though no rank is late"));
    const auto connect = [&](std::size_t from, std::int32_t to, std::int64_t busy_ms) {
        Peer peer{};
        peer.rank = to;
        peer.arrived = 100'000'000;
        peer.busy_ns = busy_ms * kMs;
        records[from].groups[0].peers.push_back(peer);
    };
    connect(0, 1, 100);
    connect(1, 2, 100);
    connect(0, 2, 10'000);
    connect(2, 0, 9'000);
    const Pace pace = pace_of(records);
    EXPECT_FALSE(pace.slow);
    EXPECT_THAT(
        pace.sentence,
        HasSubstr(
            "the connection between rank 0 (on no-such-host-0) and rank 2 (on no-such-host-2) "
            "moves 10 MB a second, others 1.0 GB"));
}

TEST(Pace, OfARankOnWhichCollectivesEndLaterBlamesNobody) {
    Plan plan;
    plan.ends_later_ms = [](std::int32_t rank) { return rank == 1 ? 5.0 : 0.0; };
    const Pace pace = pace_of(run(plan));
    EXPECT_FALSE(pace.slow);
    EXPECT_NEAR(pace.ranks[1].late, 0, 1000);
}

TEST(Pace, SaysNothingOfShortCollectives) {
    Plan plan;
    plan.compute_ms = [](auto...) { return 0.1; };
    plan.transfer_ms = 0.5;
    EXPECT_EQ(pace_of(run(plan)).sentence, "");
}

}  // namespace
}  // namespace libddp::record
