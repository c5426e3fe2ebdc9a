// The clocks of several machines on one.
#include "why/clocks.h"

#include <gtest/gtest.h>

#include <random>

#include "story.h"

namespace libddp::record {
namespace {

// Three machines, one rank each, whose clocks differ by seconds. Collectives take at least 0.1 ms.
std::vector<ProcessRecord> run_on_three(double drift = 0) {
    const double ahead[] = {0, 5'000, -7'000};  // ms
    auto all = stories(3);
    std::mt19937 random(1);
    std::uniform_real_distribution<double> late(0, 3), takes(0.1, 2);
    for (std::int64_t i = 0; i < 200; ++i) {
        const double start = 20'000 + 10.0 * static_cast<double>(i);
        double came[3], last = 0;
        for (double& at : came) last = std::max(last, at = start + late(random));
        for (std::size_t rank = 0; rank < 3; ++rank) {
            const double clock = ahead[rank] * (1 + drift * static_cast<double>(i));
            all[rank].end(i, came[rank] + clock, last + takes(random) + clock);
        }
    }
    auto records = records_of(all);
    for (std::size_t rank = 0; rank < 3; ++rank) {
        records[rank].identity.host_id = "boot-" + std::to_string(rank) + " net";
        // their times of day are no better than this
        records[rank].opened_realtime_ns = 1'000'000 * kMs;
    }
    return records;
}

TEST(Clocks, AreFoundFromCollectives) {
    auto records = run_on_three();
    align_clocks(records);
    EXPECT_EQ(records[0].clock.uncertainty_ns, 0);
    for (const std::size_t rank : {1u, 2u}) {
        const std::int64_t truth = records[0].clock.offset_ns - (rank == 1 ? 5'000 : -7'000) * kMs;
        EXPECT_GT(records[rank].clock.uncertainty_ns, 0);
        EXPECT_LT(records[rank].clock.uncertainty_ns, kMs);
        EXPECT_NEAR(static_cast<double>(records[rank].clock.offset_ns - truth), 0,
                    static_cast<double>(records[rank].clock.uncertainty_ns));
    }
}

TEST(Clocks, ThatDriftAreLessCertain) {
    auto records = run_on_three(1e-5);  // 10 ms in all for one of them
    align_clocks(records);
    // in the middle of the run
    const std::int64_t truth = records[0].clock.offset_ns - 5'005 * kMs;
    EXPECT_NEAR(static_cast<double>(records[1].clock.offset_ns - truth), 0,
                static_cast<double>(records[1].clock.uncertainty_ns) + 1.0 * kMs);
    EXPECT_GT(records[1].clock.uncertainty_ns, 2 * kMs);
}

TEST(Clocks, OfOneMachineAreOne) {
    auto records = run_on_three();
    for (auto& record : records)
        record.identity.host_id = "boot net-" + std::to_string(record.identity.pid);
    // another look at the time of day, in another network namespace
    records[1].opened_realtime_ns += 7;
    align_clocks(records);
    EXPECT_EQ(records[1].clock.offset_ns, records[0].clock.offset_ns);
    EXPECT_EQ(records[1].clock.uncertainty_ns, 0);
}

TEST(Clocks, WithoutACollectiveAreTheTimesOfDay) {
    auto records = run_on_three();
    for (auto& record : records) record.events.clear();
    align_clocks(records);
    EXPECT_EQ(records[2].clock.offset_ns, 1'000'000 * kMs);
    EXPECT_EQ(records[2].clock.uncertainty_ns, Clock::kUnknown);
}

}  // namespace
}  // namespace libddp::record
