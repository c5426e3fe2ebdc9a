// Ranks that train apart between outer steps, while some die and others come: the outer parameters
// are those of a replay, in one process, of the rounds that were applied.
#include "outer/averager.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "elastic/job.h"
#include "hooks/plain.h"
#include "support.h"

namespace libddp::averager_test {
namespace {

constexpr std::size_t kCount = 200;
constexpr std::int64_t kPeriod = 5, kSteps = 100;
constexpr std::int32_t kRanks = 4;

ddp_outer_options outer() {
    return {sizeof(ddp_outer_options), DDP_OUTER_NESTEROV, 0, 0.5, 0.75, 0};
}

float gradient_of(std::int64_t step, std::int32_t rank, std::size_t i) {
    return static_cast<float>((step * 31 + rank * 17 + static_cast<std::int64_t>(i)) % 23 - 11);
}

void train_one_step(std::vector<float>& values, std::int64_t step, std::int32_t rank) {
    for (std::size_t i = 0; i < kCount; ++i) values[i] -= 0.01F * gradient_of(step, rank, i);
}

// After which number of steps which number of ranks averaged. A round that was lost is overwritten
// by the one that took its place.
class Rounds {
public:
    void applied(std::int64_t steps, std::int32_t world) {
        const std::lock_guard lock(mutex_);
        worlds_[steps] = world;
    }
    std::vector<double> replay() const {
        std::vector<double> x(kCount), u(kCount);
        std::int64_t from = 0;
        for (const auto& [to, world] : worlds_) {
            std::vector<double> mean(kCount);
            for (std::int32_t rank = 0; rank < world; ++rank) {
                std::vector<float> values(x.begin(), x.end());
                for (std::int64_t step = from; step < to; ++step)
                    train_one_step(values, step, rank);
                for (std::size_t i = 0; i < kCount; ++i)
                    mean[i] += static_cast<double>(values[i]) / world;
            }
            for (std::size_t i = 0; i < kCount; ++i) {
                const double d = x[i] - mean[i];
                u[i] = from == 0 ? 0 : 0.75 * u[i] + d;
                x[i] = from == 0 ? mean[i] : x[i] - 0.5 * (d + 0.75 * u[i]);
            }
            from = to;
        }
        return x;
    }

private:
    mutable std::mutex mutex_;
    std::map<std::int64_t, std::int32_t> worlds_;
};

class Trainer {
public:
    Trainer(std::shared_ptr<Store> store, const char* backend, MembershipOptions membership,
            std::int64_t period = kPeriod) {
        GroupConfig config;
        config.backend = backend;
        config.timeout_ms = 3000;
        config.name = "job";
        membership.timeout_ms = testing::kLongMs;
        job = std::make_unique<ElasticJob>(std::move(store), config, membership);
        context = std::make_unique<Context>(job->group(), ContextOptions());
        Param param;
        param.name = "w";
        param.shape = {kCount};
        param.data = values.data();
        param.grad = gradient.data();
        context->register_params({param});
        context->set_hook(std::make_shared<NoopHook>());
        context->commit();
        averager = std::make_unique<Averager>(
            *context, std::vector<Averager::Level>{{period, 1, nullptr}}, 0);
        averager->set_outer(outer());
    }
    void add() {
        job->add_context(*context);
        job->add_averager(*averager);
    }

    // Until all ranks are there again right after an outer step, which all see alike. happens: in
    // each step; may throw.
    template <class Event>
    void train(Rounds& rounds, Event happens) {
        const auto start = std::chrono::steady_clock::now();
        for (;;) {
            job->begin();
            const bool whole =
                job->group()->world() == kRanks && averager->steps() == averager->shared_steps();
            if (job->steps() >= kSteps && (whole || testing::elapsed_ms(start) > testing::kLongMs))
                return;
            train_one_step(values, job->steps(), job->group()->rank());
            try {
                context->step_begin();
                happens();
                context->step_call([](Reducer& reducer) { reducer.arrivals().grad_ready(0); });
                context->step_call([](Reducer& reducer) { reducer.results().finalize(); });
                const bool averaged = averager->step() > 0;
                job->commit();
                if (averaged) rounds.applied(job->steps(), job->group()->world());
            } catch (const Error& error) {
                if (!job->group()->broken()) throw;
            }
        }
    }
    std::vector<float> values = std::vector<float>(kCount), gradient = values;
    std::unique_ptr<ElasticJob> job;
    std::unique_ptr<Context> context;
    std::unique_ptr<Averager> averager;
};

struct Death {};

class ElasticAverager : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, ElasticAverager, ::testing::Values("tcp", "shm"),
                         [](const auto& backend) { return std::string(backend.param); });

// Between two outer steps, so that the others lose what they did since then, and once right at the
// end of a round.
TEST_P(ElasticAverager, ALossGoesBackToTheLastOuterStepAndANewRankBeginsThere) {
    const auto service = testing::make_service("tcp");
    const MembershipOptions membership{2, kRanks, 500};
    Rounds rounds;
    std::mutex mutex;
    std::vector<std::vector<float>> ends;
    std::vector<std::future<void>> all;
    for (int i = 0; i < kRanks; ++i)
        all.push_back(std::async(std::launch::async, [&, i] {
            const std::int64_t dies_at = i == 1 ? 28 : i == 2 ? 50 : -1;
            for (bool first = true;; first = false) {
                Trainer trainer(service->connect(), GetParam(), membership);
                trainer.add();
                try {
                    trainer.train(rounds, [&] {
                        std::this_thread::sleep_for(std::chrono::milliseconds(2));
                        if (first && trainer.job->steps() == dies_at) throw Death();
                    });
                } catch (const Death&) {
                    continue;
                }
                const std::lock_guard lock(mutex);
                ends.push_back(trainer.values);
                break;
            }
        }));
    for (auto& one : all) EXPECT_NO_THROW(one.get());
    ASSERT_EQ(ends.size(), std::size_t{kRanks});
    const auto expected = rounds.replay();
    for (const auto& values : ends) {
        EXPECT_EQ(values, ends[0]) << "every rank has the same bits";
        for (std::size_t i = 0; i < kCount; ++i)
            ASSERT_NEAR(values[i], expected[i], 1e-4 * std::fabs(expected[i]) + 1e-3) << i;
    }
}

TEST(ElasticAveragers, WhatDoesNotFitIsRefused) {
    const auto service = testing::make_service("tcp");
    Trainer trainer(service->connect(), "tcp", {1, 1, 500});
    testing::expect_error(DDP_ERROR_INVALID_STATE, {"context is not in the job"},
                          [&] { trainer.job->add_averager(*trainer.averager); });
    trainer.job->add_context(*trainer.context);
    Averager plain(*trainer.context, {{kPeriod, 1, nullptr}}, 0);
    testing::expect_error(DDP_ERROR_INVALID_STATE, {"no outer optimizer", "DDP_OUTER_SGD"},
                          [&] { trainer.job->add_averager(plain); });
    Averager several(*trainer.context, {{1, 1, nullptr}, {2, 1, nullptr}}, 0);
    testing::expect_error(DDP_ERROR_UNSUPPORTED, {"2 periods"},
                          [&] { trainer.job->add_averager(several); });
    trainer.job->add_averager(*trainer.averager);
    testing::expect_error(DDP_ERROR_UNSUPPORTED, {"no more than one"},
                          [&] { trainer.job->add_averager(*trainer.averager); });
    trainer.job->begin();
    testing::expect_error(DDP_ERROR_INVALID_STATE, {"has begun"},
                          [&] { trainer.job->add_averager(*trainer.averager); });
}

}  // namespace
}  // namespace libddp::averager_test
