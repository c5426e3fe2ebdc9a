// The search for a bucket cap, on jobs whose steps take given times.
#include "core/cap_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

using namespace libddp;
using testing::HasSubstr;
using testing::IsSubsetOf;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
using StepTime = std::function<double(std::size_t cap, int step)>;  // in milliseconds

// 64 parameters of 1 MiB.
BucketPlan plan_of_64_mib(const CapTuner::Caps& caps) {
    return make_plan(std::vector<PlanParam>(64, PlanParam{kMiB}), reverse_order(64), caps);
}

struct Job {
    explicit Job(StepTime time, std::size_t usual = 4 * kMiB)
        : tuner(kMiB, usual), time_(std::move(time)) {}

    // As a context does: a step, and a rebuild once one is due.
    void step() {
        const std::size_t cap = tuner.caps().back();
        caps.insert(cap);
        now_ += std::chrono::nanoseconds(static_cast<std::int64_t>(1e6 * time_(cap, steps)));
        ++steps;
        tuner.step_ended(now_);
        if (tuner.due()) tuner.advance(tuner.step_ms(), plan_of_64_mib);
    }

    std::size_t find() {
        while (!tuner.done() && steps < 10000) step();
        EXPECT_TRUE(tuner.done());
        return tuner.caps().back();
    }

    CapTuner tuner;
    std::set<std::size_t> caps;
    int steps = 0;

private:
    StepTime time_;
    CapTuner::Point now_ = CapTuner::Point() + std::chrono::hours(1);
};

TEST(CapTuner, FindsTheFastestCap) {
    for (const std::size_t best : {kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
        Job job([best](std::size_t cap, int) {
            return 50 +
                   5 * std::abs(std::log2(static_cast<double>(cap) / static_cast<double>(best)));
        });
        EXPECT_EQ(job.find(), best);
        EXPECT_LE(job.steps, 190);
    }
}

TEST(CapTuner, TriesNoTwoCapsWithTheSamePlan) {
    Job job([](std::size_t, int) { return 50.0; });
    job.find();
    // Each parameter is a bucket with 1 MiB and less; 64 MiB hold all of them.
    EXPECT_THAT(job.caps, IsSubsetOf({kMiB / 16, kMiB / 4, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}));
    EXPECT_LE(job.caps.size(), 4u);
}

TEST(CapTuner, KeepsTheUsualCapUnlessAnotherSavesEnough) {
    const auto job_with_gain = [](double gain) {
        return Job(
            [gain](std::size_t cap, int) { return cap == 16 * kMiB ? 50 * (1 - gain) : 50; });
    };
    EXPECT_EQ(job_with_gain(0.015).find(), 4 * kMiB);
    EXPECT_EQ(job_with_gain(0.03).find(), 16 * kMiB);
}

TEST(CapTuner, LeavesASlowCapAfterTwoVisits) {
    int slow = 0;
    Job job([&](std::size_t cap, int) { return cap == 64 * kMiB ? ++slow, 100.0 : 50.0; });
    EXPECT_EQ(job.find(), 4 * kMiB);
    EXPECT_LE(slow, 12);
}

// The machine becomes half as fast for a while, steps vary by 3 %, and one in 20 takes three times
// as long. The chosen cap is never worse than the usual cap by more than 2 %, and close to the
// best.
TEST(CapTuner, NoiseDoesNotMislead) {
    for (unsigned seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        std::normal_distribution<double> noise(1, 0.03);
        std::uniform_real_distribution<double> even(0, 1);
        std::vector<double> costs;
        for (int i = 0; i < 20; ++i) costs.push_back(even(random));
        const auto steady = [&costs](std::size_t cap) {
            return 50 * (1 + 0.3 * costs[static_cast<std::size_t>(
                                       std::log2(static_cast<double>(cap) / kMiB * 256))]);
        };
        const int from = static_cast<int>(100 * even(random));
        Job job([&](std::size_t cap, int step) {
            const double load = step >= from && step < from + 30 ? 2 : 1;
            return steady(cap) * load * std::max(0.8, noise(random)) *
                   (even(random) < 0.05 ? 3 : 1);
        });
        const double found = steady(job.find());
        double best = steady(4 * kMiB);
        for (const std::size_t cap : job.caps) best = std::min(best, steady(cap));
        EXPECT_LE(found, 1.02 * steady(4 * kMiB)) << seed;
        EXPECT_LE(found, 1.05 * best) << seed;
    }
}

// Such as the step after a pause of the program's own.
TEST(CapTuner, AStepMayBeLeftOut) {
    Job job([](std::size_t cap, int step) {
        return step % 3 == 0 ? 1000 : cap == 16 * kMiB ? 40 : 50;
    });
    for (; !job.tuner.done(); job.step())
        if (job.steps % 3 == 0) job.tuner.skip_step();
    EXPECT_EQ(job.tuner.caps().back(), 16 * kMiB);
}

TEST(CapTuner, AShortStepIsMeasuredMoreOften) {
    Job job([](std::size_t cap, int) { return cap == 16 * kMiB ? 0.9 : 1.0; });
    EXPECT_EQ(job.find(), 16 * kMiB);
    EXPECT_GT(job.steps, 1000);
}

TEST(CapTuner, AModelThatIsOneBucketNeedsNoSearch) {
    CapTuner tuner(0, 25 * kMiB);
    tuner.step_ended(CapTuner::Point() + std::chrono::seconds(1));
    ASSERT_TRUE(tuner.due());
    tuner.advance(tuner.step_ms(),
                  [](const CapTuner::Caps& caps) { return make_plan({{1000}}, {0}, caps); });
    EXPECT_TRUE(tuner.done());
}

TEST(CapTuner, BeginsAnew) {
    Job job([](std::size_t cap, int step) { return (step < 400) == (cap == kMiB) ? 40 : 50; });
    EXPECT_EQ(job.find(), kMiB);
    EXPECT_THAT(job.tuner.text(), HasSubstr("bucket cap 1048576 bytes"));
    while (job.steps < 400) job.step();
    EXPECT_EQ(job.tuner.caps().back(), kMiB);
    job.tuner.restart();
    EXPECT_EQ(job.tuner.caps().back(), 4 * kMiB);
    EXPECT_EQ(job.find(), 4 * kMiB);
}

}  // namespace
