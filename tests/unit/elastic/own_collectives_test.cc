// A job without contexts: the program reduces its gradients with collectives of its own.
#include <gtest/gtest.h>

#include <future>
#include <numeric>
#include <vector>

#include "elastic/job.h"
#include "support.h"

namespace libddp {
namespace {

constexpr std::int64_t kOwnSteps = 12;
constexpr std::size_t kValues = 100;

// Adds to each value, in each step, the sum over the samples of the step.
class OwnTrainer {
public:
    explicit OwnTrainer(testing::Service& service) {
        GroupConfig config;
        config.backend = "tcp";
        config.timeout_ms = testing::kLongMs;
        config.name = "job";
        MembershipOptions membership{2, 2, testing::kLongMs};
        membership.timeout_ms = testing::kLongMs;
        job = std::make_unique<ElasticJob>(service.connect(), config, membership);
        job->add_state(
            {"values", reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)});
    }

    void apply_step() {
        std::vector<float> gradient(kValues, sample(job->steps(), job->group()->rank()));
        job->group()->run({DDP_COLLECTIVE_ALLREDUCE, nullptr, gradient.data(), kValues, DDP_F32},
                          {});
        for (std::size_t i = 0; i < kValues; ++i) values[i] += gradient[i];
    }
    static float sample(std::int64_t step, std::int32_t rank) {
        return static_cast<float>(100 * step + 10 * rank + 1);
    }

    std::unique_ptr<ElasticJob> job;
    std::vector<float> values = std::vector<float>(kValues);
};

// The program of rank 1 applies step 5, and an exception of its own keeps it from the commit.
TEST(OwnCollectives, AStepThatWasAppliedAndNotCommittedIsNotAppliedTwice) {
    const auto service = testing::make_service("tcp");
    float expected = 0;
    for (std::int64_t step = 0; step < kOwnSteps; ++step)
        expected += OwnTrainer::sample(step, 0) + OwnTrainer::sample(step, 1);
    std::vector<std::future<void>> all;
    for (int i = 0; i < 2; ++i)
        all.push_back(std::async(std::launch::async, [&] {
            OwnTrainer trainer(*service);
            bool failed = false;
            for (trainer.job->begin(); trainer.job->steps() < kOwnSteps; trainer.job->begin()) {
                try {
                    trainer.apply_step();
                } catch (const Error& error) {
                    if (!trainer.job->group()->broken()) throw;
                    continue;
                }
                if (trainer.job->steps() == 5 && trainer.job->group()->rank() == 1 &&
                    !std::exchange(failed, true))
                    continue;
                trainer.job->commit();
            }
            EXPECT_EQ(trainer.values, std::vector<float>(kValues, expected));
        }));
    for (auto& one : all) one.get();
}

}  // namespace
}  // namespace libddp
