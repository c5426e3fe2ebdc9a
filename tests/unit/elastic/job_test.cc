// Training while ranks die, come and leave: the parameters are those of one process that did every
// step once.
#include "elastic/job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "hooks/builtin.h"
#include "support.h"

namespace libddp {
namespace {

constexpr std::size_t kParams = 5, kCount = 300;
constexpr std::int64_t kSamples = 12;  // of a step
constexpr std::int64_t kTimeoutMs = 3000;

// The gradient of a sample, the same on every rank. Integers, so that their sum does not depend on
// its order.
float gradient_of(std::int64_t step, std::int64_t sample, std::size_t param, std::size_t i) {
    return static_cast<float>(
        (step * 31 + sample * 17 + static_cast<std::int64_t>(param * 7 + i)) % 23 - 11);
}

struct Model {
    std::vector<std::vector<float>> values{kParams, std::vector<float>(kCount)}, gradients = values,
                                                                                 momenta = values;

    void compute(std::int64_t step, std::int64_t rank, std::int64_t world, std::size_t param) {
        for (std::size_t i = 0; i < kCount; ++i) {
            gradients[param][i] = 0;
            for (std::int64_t sample = rank; sample < kSamples; sample += world)
                gradients[param][i] += gradient_of(step, sample, param, i);
        }
    }
    void apply() {
        for (std::size_t p = 0; p < kParams; ++p)
            for (std::size_t i = 0; i < kCount; ++i) {
                momenta[p][i] = 0.75F * momenta[p][i] + gradients[p][i];
                values[p][i] -= 0.01F * momenta[p][i];
            }
    }
};

// One process that does every step once.
std::vector<std::vector<float>> reference(std::int64_t steps) {
    Model model;
    for (std::int64_t step = 0; step < steps; ++step) {
        for (std::size_t p = 0; p < kParams; ++p) model.compute(step, 0, 1, p);
        model.apply();
    }
    return model.values;
}

struct Setting {
    const char* backend;
    MembershipOptions membership{};
};

// A process of these tests. It dies when the object goes.
class Trainer {
public:
    Trainer(testing::Service& service, const Setting& setting, const std::string& layers = "layer",
            std::int64_t timeout_ms = kTimeoutMs) {
        GroupConfig config;
        config.backend = setting.backend;
        config.timeout_ms = timeout_ms;
        config.name = "job";
        MembershipOptions membership = setting.membership;
        membership.timeout_ms = testing::kLongMs;
        job = std::make_unique<ElasticJob>(service.connect(), config, membership);
        ContextOptions options;
        options.reducer.mean = false;
        context = std::make_unique<Context>(job->group(), options);
        for (std::size_t p = 0; p < kParams; ++p) {
            Param param;
            param.name = layers + std::to_string(p);
            param.shape = {kCount};
            param.data = model.values[p].data();
            param.grad = model.gradients[p].data();
            context->register_params({param});
        }
        context->commit();
        job->add_context(*context);
        for (std::size_t p = 0; p < kParams; ++p)
            job->add_state({"momentum" + std::to_string(p),
                            reinterpret_cast<std::byte*>(model.momenta[p].data()),
                            kCount * sizeof(float)});
    }

    // Trains until `steps` have been applied. Between two gradients and after a step, `happens` may
    // throw.
    template <class Event>
    void train(std::int64_t steps, Event happens) {
        for (;;) {
            job->begin();
            if (job->steps() >= steps) return;
            try {
                step(happens);
            } catch (const Error& error) {
                if (!job->group()->broken()) throw;
            }
        }
    }
    template <class Event>
    void step(Event happens) {
        context->step_begin();
        for (std::size_t p = kParams; p-- > 0;) {
            model.compute(job->steps(), job->group()->rank(), job->group()->world(), p);
            happens();
            context->step_call([&](Reducer& reducer) {
                reducer.arrivals().grad_ready(static_cast<std::int32_t>(p));
            });
        }
        context->step_call([](Reducer& reducer) { reducer.results().finalize(); });
        model.apply();
        job->commit();
        happens();
    }

    Model model;
    std::unique_ptr<ElasticJob> job;
    std::unique_ptr<Context> context;
};

class ElasticTraining : public ::testing::TestWithParam<const char*> {
protected:
    std::unique_ptr<testing::Service> service_ = testing::make_service("tcp");
};

INSTANTIATE_TEST_SUITE_P(Backends, ElasticTraining,
                         ::testing::Values("tcp", "shm", "hierarchical", "gloo"),
                         [](const auto& backend) { return std::string(backend.param); });

struct Death {};

// All have ended, and none has thrown.
void end_all(std::vector<std::future<void>>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
        try {
            all[i].get();
        } catch (const std::exception& error) {
            ADD_FAILURE() << "thread " << i << ": " << error.what();
        }
    }
}

TEST_P(ElasticTraining, SurvivorsGoOnAndANewRankGetsTheState) {
    constexpr std::int64_t kSteps = 60;
    const Setting setting{GetParam(), {2, 4, 500}};
    std::vector<std::future<void>> all;
    for (int i = 0; i < 3; ++i)
        all.push_back(std::async(std::launch::async, [&, i] {
            try {
                Trainer trainer(*service_, setting);
                trainer.train(kSteps, [&] {
                    if (i == 1 && trainer.job->steps() == 10) throw Death();
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                });
                EXPECT_EQ(trainer.model.values, reference(kSteps));
            } catch (const Death&) {
                // Its memory goes with it; it comes again, from nothing.
                Trainer again(*service_, setting);
                again.train(kSteps,
                            [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
                EXPECT_EQ(again.job->group()->world(), 3);
                EXPECT_EQ(again.model.values, reference(kSteps));
            }
        }));
    end_all(all);
}

// Ranks die between gradients and between steps, fall silent for longer than the others wait,
// leave, and come again.
TEST_P(ElasticTraining, AStormOfLossesLeavesOneHistory) {
#ifdef DDP_SANITIZED
    constexpr std::int64_t kSteps = 60;
#else
    constexpr std::int64_t kSteps = 150;
#endif
    constexpr int kThreads = 4;
    const Setting setting{GetParam(), {1, 4, 400}};
    const auto expected = reference(kSteps);
    std::vector<std::future<void>> all;
    for (int i = 0; i < kThreads; ++i)
        all.push_back(std::async(std::launch::async, [&, i] {
            std::mt19937 chance(static_cast<unsigned>(i) + 7);
            const auto one_in = [&](unsigned n) { return chance() % n == 0; };
            for (int lives = 4; lives > 0; --lives) {
                try {
                    Trainer trainer(*service_, setting);
                    trainer.train(kSteps, [&] {
                        std::this_thread::sleep_for(std::chrono::microseconds(200));
                        if (lives > 1 && one_in(150)) throw Death();
                        if (lives > 1 && one_in(1000))
                            std::this_thread::sleep_for(std::chrono::milliseconds(700));
                    });
                    EXPECT_EQ(trainer.model.values, expected);
                    return;
                } catch (const Death&) {
                } catch (const Error& error) {
                    // It was silent for too long.
                    EXPECT_EQ(error.info().code, DDP_ERROR_RANK_FAILED) << error.what();
                }
            }
        }));
    end_all(all);
}

TEST_P(ElasticTraining, ARankThatCannotGoOnIsTheOnlyOneToFail) {
    constexpr std::int64_t kSteps = 60;
    const Setting setting{GetParam(), {1, 3, 500}};
    std::vector<std::future<void>> all;
    for (int i = 0; i < 3; ++i)
        all.push_back(std::async(std::launch::async, [&, i] {
            std::optional<Trainer> trainer(std::in_place, *service_, setting);
            const auto train = [&] {
                trainer->train(kSteps, [&] {
                    Group& group = *trainer->job->group();
                    if (i == 1 && trainer->job->steps() == 10)
                        group.break_everywhere(
                            {DDP_ERROR_OUT_OF_MEMORY, "no memory", group.rank()});
                });
            };
            if (i == 1) {
                testing::expect_error(DDP_ERROR_OUT_OF_MEMORY, {"no memory"}, train);
                trainer.reset();
            } else {
                train();
                EXPECT_EQ(trainer->model.values, reference(kSteps));
            }
        }));
    end_all(all);
}

// Three ranks begin the step, one dies, and a new one gets the hook's state before the step is done
// again.
TEST_P(ElasticTraining, AStepThatIsDoneAgainCountsOnceForTheHook) {
    constexpr std::int64_t kSteps = 20;
    const Setting setting{GetParam(), {3, 3, testing::kLongMs}};
    const auto train = [&](bool dies) {
        Trainer trainer(*service_, setting);
        trainer.context->set_hook(
            make_hook("post_local_sgd", "start=1000", trainer.context->group()));
        trainer.train(kSteps, [&] {
            if (dies && trainer.job->steps() == 10) throw Death();
        });
        const auto state = trainer.context->reducer()->hook_state();
        const std::string text(reinterpret_cast<const char*>(state.data()), state.size());
        EXPECT_NE(text.find(str("\\\"steps\\\":", kSteps, "}")), std::string::npos) << text;
        EXPECT_EQ(trainer.model.values, reference(kSteps));
    };
    std::vector<std::future<void>> all;
    for (int i = 0; i < 3; ++i)
        all.push_back(std::async(std::launch::async, [&, i] {
            try {
                train(i == 1);
            } catch (const Death&) {
                train(false);
            }
        }));
    end_all(all);
}

// The others wait for a rank of the roster that has not told their group that it might die.
TEST_P(ElasticTraining, ARankThatDiesBeforeItJoinsTheGroupIsNotWaitedFor) {
    const Setting setting{GetParam(), {1, 2, testing::kLongMs}};
    std::promise<void> has_come;
    auto all = std::async(std::launch::async, [&] {
        Trainer trainer(*service_, setting, "layer", testing::kLongMs);
        has_come.set_value();
        trainer.job->begin();
        EXPECT_EQ(trainer.job->group()->world(), 1);
        EXPECT_EQ(trainer.job->roster().number, 2);
    });
    has_come.get_future().get();
    const auto start = std::chrono::steady_clock::now();
    MembershipOptions both = setting.membership;
    both.timeout_ms = testing::kLongMs;
    auto dies = std::make_unique<Membership>(service_->connect(), "job", both);
    EXPECT_EQ(dies->meet(-1).members.size(), 2U);
    dies.reset();
    all.get();
    EXPECT_LT(testing::elapsed_ms(start), testing::kLongMs);
}

// A third rank dies while the group of all three forms.
TEST_P(ElasticTraining, ACheckpointDoesNotReplaceTheStateOfTheJobAfterAFirstAttemptToJoin) {
    constexpr std::int64_t kSteps = 60;
    Setting setting{GetParam(), {1, 3, testing::kLongMs}};
    setting.membership.first_world = 1;
    std::promise<void> trains;
    auto stays = std::async(std::launch::async, [&] {
        Trainer trainer(*service_, setting);
        const auto look = service_->connect();
        bool waited = false;
        trainer.train(kSteps, [&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (waited || trainer.job->steps() < 10) return;
            waited = true;
            trains.set_value();
            EXPECT_TRUE(testing::eventually(
                [&] { return look->list_keys("elastic/job/meet/2/").size() == 2; }));
        });
        EXPECT_GE(trainer.job->roster().number, 3);
        EXPECT_EQ(trainer.model.values, reference(kSteps));
    });
    trains.get_future().get();
    MembershipOptions options = setting.membership;
    options.timeout_ms = testing::kLongMs;
    auto dies = std::make_unique<Membership>(service_->connect(), "job", options);
    auto death = std::async(std::launch::async, [&] {
        EXPECT_EQ(dies->meet(-1).members.size(), 3U);
        dies.reset();
    });
    Trainer joins(*service_, setting);
    for (auto& values : joins.model.values) std::fill(values.begin(), values.end(), 99.0F);
    joins.job->set_steps(1000);
    joins.train(kSteps, [] {});
    EXPECT_EQ(joins.model.values, reference(kSteps));
    death.get();
    stays.get();
}

TEST_P(ElasticTraining, ANewRankWithAnotherModelIsRefusedAndTheOthersGoOn) {
    constexpr std::int64_t kSteps = 100;
    const Setting setting{GetParam(), {2, 4, 500}};
    std::atomic<bool> refused{false}, begun{false};
    std::vector<std::future<void>> all;
    for (int i = 0; i < 2; ++i)
        all.push_back(std::async(std::launch::async, [&] {
            Trainer trainer(*service_, setting);
            const auto start = std::chrono::steady_clock::now();
            trainer.train(kSteps, [&] {
                begun = begun || trainer.job->steps() > 0;
                const bool late = testing::elapsed_ms(start) > testing::kLongMs;
                if (trainer.job->steps() == kSteps - 5 && !refused && !late)
                    std::this_thread::sleep_for(std::chrono::milliseconds(20));
            });
            EXPECT_EQ(trainer.model.values, reference(kSteps));
        }));
    EXPECT_TRUE(testing::eventually([&] { return begun.load(); }));
    try {
        Trainer other(*service_, setting, "weight");
        other.train(kSteps, [] {});
        ADD_FAILURE() << "it joined";
    } catch (const Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_MISMATCH) << error.what();
    }
    refused = true;
    end_all(all);
}

}  // namespace
}  // namespace libddp
