// Ranks that train apart between outer steps, of the whole model or of fragments that travel, while
// some die and others come: the outer parameters are those of a replay, in one process, of the turns
// that were applied.
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
// Three parameters are three fragments, or two: the first, and the others.
constexpr std::size_t kSizes[] = {90, 60, 50};
constexpr std::int64_t kPeriod = 6, kSteps = 100;
constexpr std::int32_t kRanks = 4;

struct Setting {
    const char* backend;
    std::int32_t fragments;
    std::int64_t delay;
    double alpha;
    ddp_dtype sent = 0;

    // With 8 bits each turn rounds d, of at most about 2, twice.
    double tolerance(double expected) const {
        return sent == DDP_U8 ? 0.2 : 1e-4 * std::fabs(expected) + 1e-3;
    }
};

ddp_outer_options outer(const Setting& s) {
    return {sizeof(ddp_outer_options),
            DDP_OUTER_NESTEROV,
            0,
            0.5,
            0.75,
            0,
            s.fragments,
            s.sent,
            s.delay,
            s.alpha};
}

float gradient_of(std::int64_t step, std::int32_t rank, std::size_t i) {
    return static_cast<float>((step * 31 + rank * 17 + static_cast<std::int64_t>(i)) % 23 - 11);
}

template <class Number>
void train_one_step(std::vector<Number>& values, std::int64_t step, std::int32_t rank) {
    for (std::size_t i = 0; i < kCount; ++i) values[i] -= 0.01F * gradient_of(step, rank, i);
}

// After which number of steps which ranks did an outer step. One that was lost is overwritten by the
// one that took its place. A new roster begins at the outer parameters.
class Turns {
public:
    explicit Turns(const Setting& setting) : setting_(setting) {}
    void applied(std::int64_t steps, std::int32_t world, std::int64_t roster) {
        const std::lock_guard lock(mutex_);
        turns_[steps] = {world, roster};
    }
    std::vector<double> replay() const {
        std::vector<double> x(kCount), u(kCount), mean(kCount);
        std::vector<std::vector<double>> models;
        std::int64_t from = 0, roster = -1;
        for (const auto& [to, turn] : turns_) {
            if (turn.roster != roster) models.assign(static_cast<std::size_t>(turn.world), x);
            roster = turn.roster;
            const std::int64_t sent = from == 0 ? 0 : to - 1 - setting_.delay;
            for (std::int64_t step = from; step < to; ++step) {
                for (std::size_t r = 0; r < models.size(); ++r)
                    train_one_step(models[r], step, static_cast<std::int32_t>(r));
                if (step == sent) mean = mean_of(models);
            }
            for (std::size_t i = 0; i < kCount; ++i) {
                if (from > 0 && fragment_of(i) != fragment_at(sent)) continue;
                const double d = x[i] - mean[i];
                u[i] = from == 0 ? 0 : 0.75 * u[i] + d;
                x[i] = from == 0 ? mean[i] : x[i] - 0.5 * (d + 0.75 * u[i]);
                const double alpha = from == 0 ? 0 : setting_.alpha;
                for (auto& model : models) model[i] = alpha * model[i] + (1 - alpha) * x[i];
            }
            from = to;
        }
        return x;
    }
    std::size_t count() const { return turns_.size(); }

private:
    struct Turn {
        std::int32_t world;
        std::int64_t roster;
    };
    static std::vector<double> mean_of(const std::vector<std::vector<double>>& models) {
        std::vector<double> mean(kCount);
        for (const auto& model : models)
            for (std::size_t i = 0; i < kCount; ++i)
                mean[i] += model[i] / static_cast<double>(models.size());
        return mean;
    }
    std::int64_t fragment_of(std::size_t i) const {
        const std::int64_t param = i < kSizes[0] ? 0 : i < kSizes[0] + kSizes[1] ? 1 : 2;
        return std::min<std::int64_t>(param, setting_.fragments - 1);
    }
    std::int64_t fragment_at(std::int64_t step) const {
        return (step / (kPeriod / setting_.fragments) - 1) % setting_.fragments;
    }

    const Setting setting_;
    mutable std::mutex mutex_;
    std::map<std::int64_t, Turn> turns_;
};

class Trainer {
public:
    Trainer(std::shared_ptr<Store> store, const Setting& setting, MembershipOptions membership) {
        GroupConfig config;
        config.backend = setting.backend;
        config.timeout_ms = 3000;
        config.name = "job";
        membership.timeout_ms = testing::kLongMs;
        job = std::make_unique<ElasticJob>(std::move(store), config, membership);
        context = std::make_unique<Context>(job->group(), ContextOptions());
        std::size_t begin = 0;
        for (const std::size_t size : kSizes) {
            Param param;
            param.name = "w" + std::to_string(begin);
            param.shape = {static_cast<std::int64_t>(size)};
            param.data = values.data() + begin;
            param.grad = gradient.data() + begin;
            context->register_params({param});
            begin += size;
        }
        context->set_hook(std::make_shared<NoopHook>());
        context->commit();
        averager = std::make_unique<Averager>(
            *context, std::vector<Averager::Level>{{kPeriod, 1, nullptr}}, 0);
        averager->set_outer(outer(setting));
    }
    void add() {
        job->add_context(*context);
        job->add_averager(*averager);
    }

    // Until all ranks are there again right after an outer step, which all see alike. happens: in
    // each step; may throw.
    template <class Event>
    void train(Turns& turns, Event happens) {
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
                for (std::int32_t i = 0; i < 3; ++i)
                    context->step_call([i](Reducer& reducer) { reducer.arrivals().grad_ready(i); });
                context->step_call([](Reducer& reducer) { reducer.results().finalize(); });
                const bool averaged = averager->step() > 0;
                job->commit();
                if (averaged)
                    turns.applied(job->steps(), job->group()->world(), job->roster().number);
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

class ElasticAverager : public ::testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Settings, ElasticAverager,
                         ::testing::Values(Setting{"tcp", 1, 0, 0}, Setting{"shm", 1, 0, 0},
                                           Setting{"tcp", 3, 1, 0.5}, Setting{"shm", 2, 2, 0.25},
                                           Setting{"tcp", 1, 4, 0},
                                           Setting{"tcp", 3, 1, 0.5, DDP_U8}),
                         [](const auto& setting) {
                             return std::string(setting.param.backend) +
                                    std::to_string(setting.param.fragments) + "delay" +
                                    std::to_string(setting.param.delay) +
                                    (setting.param.sent == DDP_U8 ? "in8bits" : "");
                         });

// Between two outer steps, so that the others lose what they did since then. With fragments once
// while one is on its way.
TEST_P(ElasticAverager, ALossGoesBackToTheLastOuterStepAndANewRankBeginsThere) {
    const auto service = testing::make_service("tcp");
    const MembershipOptions membership{2, kRanks, 500};
    Turns turns(GetParam());
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
                    trainer.train(turns, [&] {
                        std::this_thread::sleep_for(std::chrono::milliseconds(2));
                        if (first && trainer.job->steps() == dies_at) throw Death();
                    });
                } catch (const Death&) {
                    continue;
                }
                trainer.averager->go_back();
                const std::lock_guard lock(mutex);
                ends.push_back(trainer.values);
                break;
            }
        }));
    for (auto& one : all) EXPECT_NO_THROW(one.get());
    ASSERT_EQ(ends.size(), std::size_t{kRanks});
    EXPECT_GE(turns.count(), static_cast<std::size_t>(kSteps / kPeriod * GetParam().fragments));
    const auto expected = turns.replay();
    for (const auto& values : ends) {
        EXPECT_EQ(values, ends[0]) << "every rank has the same bits";
        for (std::size_t i = 0; i < kCount; ++i)
            ASSERT_NEAR(values[i], expected[i], GetParam().tolerance(expected[i])) << i;
    }
}

TEST(ElasticAveragers, WhatDoesNotFitIsRefused) {
    const auto service = testing::make_service("tcp");
    Trainer trainer(service->connect(), {"tcp", 1, 0, 0}, {1, 1, 500});
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
