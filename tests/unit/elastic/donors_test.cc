// The choice of donors when ranks meet that have done equally many steps and hold other bits.
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "elastic/job.h"
#include "support.h"

namespace libddp {
namespace {

// The values of each rank after a roster began in which rank i held values[i].
std::vector<float> after_meeting(const std::vector<float>& values) {
    const auto service = testing::make_service("tcp");
    const auto world = static_cast<std::int32_t>(values.size());
    std::vector<float> state = values;
    std::vector<std::unique_ptr<ElasticJob>> jobs;
    for (float& one : state) {
        GroupConfig config;
        config.backend = "tcp";
        config.timeout_ms = testing::kLongMs;
        config.name = "job";
        MembershipOptions membership{world, world, testing::kLongMs};
        membership.timeout_ms = testing::kLongMs;
        jobs.push_back(std::make_unique<ElasticJob>(service->connect(), config, membership));
        jobs.back()->add_state({"value", reinterpret_cast<std::byte*>(&one), sizeof one});
        jobs.back()->set_steps(5);
    }
    std::vector<std::future<void>> begun;
    for (const auto& job : jobs)
        begun.push_back(std::async(std::launch::async, [&job] {
            job->begin();
            EXPECT_EQ(job->steps(), 5);
        }));
    for (auto& one : begun) one.get();
    return state;
}

TEST(ElasticDonors, MostThatAreAlikeGiveTheirState) {
    EXPECT_EQ(after_meeting({1, 2, 2}), std::vector<float>({2, 2, 2}));
}

TEST(ElasticDonors, OfEquallyManyTheLowestRankGives) {
    EXPECT_EQ(after_meeting({3, 4}), std::vector<float>({3, 3}));
    EXPECT_EQ(after_meeting({5, 6, 7}), std::vector<float>({5, 5, 5}));
}

}  // namespace
}  // namespace libddp
