// Outer optimizers of averagers, against the formulas as the papers have them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "capi/bad_input.h"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace outer_optimizer_test {

ddp_outer_options outer(ddp_outer_kind kind, double learning_rate, double momentum,
                        double inner = 0) {
    auto options = ddp::Averager::outer_defaults();
    options.kind = kind;
    options.learning_rate = learning_rate;
    options.momentum = momentum;
    options.inner_learning_rate = inner;
    return options;
}

const ddp_outer_options kKinds[] = {
    outer(DDP_OUTER_SGD, 0.5, 0),
    outer(DDP_OUTER_SGD, 0.5, 0.8),
    outer(DDP_OUTER_NESTEROV, 0.7, 0.9),
    outer(DDP_OUTER_SLOWMO, 0.9, 0.6, 0.05),
};

// One number with its outer optimizer, in f64 and in the order of the papers.
struct Reference {
    double x = 0, u = 0;

    void step(double average, const ddp_outer_options& o) {
        const double d = x - average,
                     gamma = o.kind == DDP_OUTER_SLOWMO ? o.inner_learning_rate : 1;
        u = o.momentum * u + d / gamma;
        x -= o.learning_rate * (o.kind == DDP_OUTER_NESTEROV ? d + o.momentum * u : gamma * u);
    }
};

// How far a rank's own optimizer moves a parameter in a step.
float move(int rank, int step, int param, std::size_t k) {
    return 0.1f * std::sin(static_cast<float>(1 + rank * 7 + param * 3 + step * 5) *
                           static_cast<float>(k + 1));
}

// Larger than a block of the arithmetic, empty, and of one number.
const std::vector<std::int64_t> kSizes{5000, 0, 7, 1};

struct Trained : Model {
    explicit Trained(ddp_group* group, std::vector<std::int64_t> sizes = kSizes)
        : Model(group, std::move(sizes), true) {
        for (auto& values : data)
            for (std::size_t k = 0; k < values.size(); ++k)
                values[k] = std::cos(static_cast<float>(k));
        context.commit();
    }
    void train(int rank, int step) {
        for (int i = 0; i < count(); ++i)
            for (std::size_t k = 0; k < size(i); ++k)
                data[static_cast<std::size_t>(i)][k] -= move(rank, step, i, k);
    }
    std::vector<float> values() const {
        std::vector<float> all;
        for (const auto& values : data) all.insert(all.end(), values.begin(), values.end());
        return all;
    }
};

std::vector<float> mean_of(const std::vector<std::vector<float>>& models) {
    std::vector<float> mean(models[0].size());
    for (std::size_t k = 0; k < mean.size(); ++k) {
        double sum = 0;
        for (const auto& model : models) sum += model[k];
        mean[k] = static_cast<float>(sum / static_cast<double>(models.size()));
    }
    return mean;
}

// Trains `steps` steps with a period of 2 and returns the values of every rank.
std::vector<std::vector<float>> train(const RankOptions& ranks, const ddp_outer_options* options,
                                      int steps) {
    std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks.world));
    on_ranks(ranks, [&](int rank, ddp_group* group) {
        Trained m(group);
        ddp::Averager averager(m.context, 2, 1);
        if (options) averager.set_outer(*options);
        for (int s = 0; s < steps; ++s) {
            m.train(rank, s);
            EXPECT_EQ(averager.step(), s % 2 == 1 ? ranks.world : 0);
        }
        results[static_cast<std::size_t>(rank)] = m.values();
    });
    return results;
}

// The same with plain numbers. Every rank simulates a model on its own.
std::vector<float> simulate(int world, const ddp_outer_options& options, int steps) {
    std::vector<float> start;
    for (auto size : kSizes)
        for (std::int64_t k = 0; k < size; ++k) start.push_back(std::cos(static_cast<float>(k)));
    std::vector<std::vector<float>> models(static_cast<std::size_t>(world), start);
    std::vector<Reference> references(start.size());
    for (int s = 0; s < steps; ++s) {
        for (int rank = 0; rank < world; ++rank) {
            float* next = models[static_cast<std::size_t>(rank)].data();
            for (std::size_t i = 0; i < kSizes.size(); ++i)
                for (std::int64_t k = 0; k < kSizes[i]; ++k)
                    *next++ -= move(rank, s, static_cast<int>(i), static_cast<std::size_t>(k));
        }
        if (s % 2 == 0) continue;
        std::vector<float> mean = mean_of(models);
        for (std::size_t k = 0; k < mean.size(); ++k) {
            if (s == 1)
                references[k].x = mean[k];
            else
                references[k].step(mean[k], options);
            mean[k] = static_cast<float>(references[k].x);
        }
        models.assign(models.size(), mean);
    }
    return models[0];
}

TEST(OuterOptimizer, FollowsThePapersWithTheSameBitsOnEveryRank) {
    for (const char* backend : {"threads", "tcp", "shm"})
        for (int world = 1; world <= 4; ++world)
            for (const auto& options : kKinds) {
                SCOPED_TRACE(std::string(backend) + ", world " + std::to_string(world) + ", kind " +
                             std::to_string(options.kind));
                const auto results = train({world, backend}, &options, 10);
                const auto expected = simulate(world, options, 10);
                for (const auto& result : results) EXPECT_EQ(result, results[0]);
                for (std::size_t k = 0; k < expected.size(); ++k)
                    ASSERT_NEAR(results[0][k], expected[k], 1e-5) << "number " << k;
            }
}

TEST(OuterOptimizer, OfRateOneWithoutMomentumIsThePlainAverage) {
    const auto plain = train({3}, nullptr, 8);
    for (const auto& options :
         {outer(DDP_OUTER_NONE, 0.5, 0.5), outer(DDP_OUTER_SGD, 1, 0),
          outer(DDP_OUTER_NESTEROV, 1, 0), outer(DDP_OUTER_SLOWMO, 1, 0, 0.3)})
        EXPECT_EQ(train({3}, &options, 8), plain) << "kind " << options.kind;
}

TEST(OuterOptimizer, DefaultsAreThoseOfDiLoCo) {
    const auto o = ddp::Averager::outer_defaults();
    EXPECT_EQ(o.kind, DDP_OUTER_NESTEROV);
    EXPECT_EQ(o.learning_rate, 0.7);
    EXPECT_EQ(o.momentum, 0.9);
}

// A model whose only number is set by hand, on one rank.
struct Number : Model {
    explicit Number(ddp_group* group) : Model(group, {1}, true), averager(set(*this), 1) {}
    float step(float value) {
        data[0][0] = value;
        averager.step();
        return data[0][0];
    }
    ddp::Averager averager;

private:
    static ddp::Context& set(Number& number) {
        number.context.commit();
        return number.context;
    }
};

TEST(OuterOptimizer, ComputesByHand) {
    on_ranks({1}, [](int, ddp_group* group) {
        Number n(group);
        n.averager.set_outer(outer(DDP_OUTER_SLOWMO, 0.5, 0.5, 0.25));
        EXPECT_EQ(n.step(8), 8);  // becomes x
        // d = 1, u = 4, x = 8 - 0.5 * 0.25 * 4
        EXPECT_EQ(n.step(7), 7.5f);
        // another inner rate: u stays
        n.averager.set_outer(outer(DDP_OUTER_SLOWMO, 0.5, 0.5, 0.5));
        // d = 0.5, u = 2 + 1, x = 7.5 - 0.5 * 0.5 * 3
        EXPECT_EQ(n.step(7), 6.75f);
        n.averager.set_outer(outer(DDP_OUTER_NESTEROV, 0.5, 0.5));  // another kind begins anew
        EXPECT_EQ(n.step(4), 4);
        EXPECT_EQ(n.step(2), 2.5f);     // d = 2, u = 2, x = 4 - 0.5 * (2 + 0.5 * 2)
        EXPECT_EQ(n.step(1.5f), 1.5f);  // d = 1, u = 1 + 1, x = 2.5 - 0.5 * (1 + 0.5 * 2)
    });
}

TEST(OuterOptimizer, WithoutMomentumForgetsWhatItHad) {
    on_ranks({1}, [](int, ddp_group* group) {
        Number n(group);
        n.averager.set_outer(outer(DDP_OUTER_SGD, 1, 0.5));
        n.step(8);
        EXPECT_EQ(n.step(6), 6);  // u = 2
        n.averager.set_outer(outer(DDP_OUTER_SGD, 1, 0));
        n.averager.set_outer(outer(DDP_OUTER_SGD, 1, 0.5));
        EXPECT_EQ(n.step(5), 5);  // u = 1; it would be 2
        n.averager.set_outer(outer(DDP_OUTER_NONE, 1, 0.5));
        EXPECT_EQ(n.step(3), 3);
    });
}

TEST(OuterOptimizer, FewerRanksAreAveragedPlainly) {
    on_ranks({4}, [](int rank, ddp_group* group) {
        Model m(group, {1}, true);
        m.context.commit();
        ddp::Averager averager(m.context, {1, 2}, {2, 4});
        averager.set_outer(outer(DDP_OUTER_SGD, 0.5, 0));
        const auto step = [&](float value) {
            m.data[0][0] = value;
            averager.step();
            return m.data[0][0];
        };
        const auto r = static_cast<float>(rank);
        EXPECT_EQ(step(r), 1.5f);                        // of all: becomes x
        EXPECT_EQ(step(r), rank < 2 ? 0.5f : 2.5f);      // of two
        EXPECT_EQ(step(r), 1.5f);                        // d = 0
        EXPECT_EQ(step(2 * r), rank < 2 ? 1.0f : 5.0f);  // of two
        EXPECT_EQ(step(2 * r), 2.25f);                   // d = -1.5
    });
}

template <class T>
ddp_param add(ddp::Context& context, const char* name, ddp_dtype dtype, T& value) {
    ddp_param_desc desc;
    ddp_param_desc_init(&desc);
    desc.name = name;
    desc.dtype = dtype;
    desc.data = &value;
    ddp_param made = -1;
    ddp::detail::call(ddp_register_param, context.get(), static_cast<const ddp_param_desc*>(&desc),
                      &made);
    return made;
}

TEST(OuterOptimizer, StepsInTheTypeOfEachParameter) {
    on_ranks({2}, [](int, ddp_group* group) {
        const BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        double f64 = 1, c128[2] = {1, -1};
        float c64[2] = {1, -1}, ignored = 3;
        std::uint16_t bf16 = 0x3f80, f16 = 0x3c00;  // 1
        std::int32_t i32 = 5;
        add(context, "f64", DDP_F64, f64);
        add(context, "c128", DDP_C128, c128);
        add(context, "c64", DDP_C64, c64);
        add(context, "bf16", DDP_BF16, bf16);
        add(context, "f16", DDP_F16, f16);
        add(context, "i32", DDP_I32, i32);
        context.add_param<float>("ignored", {1}, &ignored, nullptr, DDP_PARAM_IGNORED);
        context.commit();
        ddp::Averager averager(context, 1);
        averager.set_outer(outer(DDP_OUTER_SGD, 0.125, 0));
        averager.step();
        f64 = c128[0] = 1 + 0x1p-40, c128[1] = 0;
        c64[0] = 3, c64[1] = 0;
        bf16 = 0x3f81, f16 = 0x3c01;  // 1 + 2^-7, 1 + 2^-10
        averager.step();
        EXPECT_EQ(f64, 1 + 0x1p-43);
        EXPECT_EQ(c128[0], 1 + 0x1p-43);
        EXPECT_EQ(c128[1], -0.875);
        EXPECT_EQ(c64[0], 1.25f);
        EXPECT_EQ(c64[1], -0.875f);
        EXPECT_EQ(bf16, 0x3f80);
        EXPECT_EQ(f16, 0x3c00);
        EXPECT_EQ(i32, 5);
        EXPECT_EQ(ignored, 3);
        // The part that rounding hides is kept: eighths of the space between two numbers add up.
        for (int s = 0; s < 4; ++s) {
            bf16 = 0x3f81, f16 = 0x3c01;
            averager.step();
        }
        EXPECT_EQ(bf16, 0x3f80);  // 1 - (7/8)^5 is less than a half
        EXPECT_EQ(f16, 0x3c00);
        bf16 = 0x3f81, f16 = 0x3c01;
        averager.step();
        EXPECT_EQ(bf16, 0x3f81);  // 1 - (7/8)^6 is more
        EXPECT_EQ(f16, 0x3c01);
    });
}

using File = std::vector<unsigned char>;

TEST(OuterOptimizerState, GoesOnWithTheSameBits) {
    for (const auto& options : kKinds)
        on_ranks({2}, [&](int rank, ddp_group* group) {
            SCOPED_TRACE(options.kind);
            Trained m(group), resumed(group);
            ddp::Averager averager(m.context, 2, 1);
            averager.set_outer(options);
            const auto run = [rank](Trained& model, ddp::Averager& by, int from, int to) {
                for (int s = from; s < to; ++s) {
                    model.train(rank, s);
                    by.step();
                }
            };
            const File fresh = averager.save_state();
            run(m, averager, 0, 6);
            const File state = averager.save_state();
            EXPECT_NE(state, fresh);
            for (std::size_t i = 0; i < m.data.size(); ++i)
                std::copy(m.data[i].begin(), m.data[i].end(), resumed.data[i].begin());
            run(m, averager, 6, 12);
            ddp::Averager other(resumed.context, 2, 1);
            other.set_outer(options);
            other.load_state(state);
            EXPECT_EQ(other.steps(), 6);
            EXPECT_EQ(other.save_state(), state);
            run(resumed, other, 6, 12);
            EXPECT_EQ(resumed.values(), m.values());
            other.load_state(fresh);  // as it was before the first average
            EXPECT_EQ(other.save_state(), fresh);
        });
}

TEST(OuterOptimizerState, IsTheSameOnEveryRankAndForAnyWorld) {
    File states[2];
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Trained m(group);
        ddp::Averager averager(m.context, 1);
        averager.set_outer();
        for (int s = 0; s < 3; ++s) m.train(rank, s), averager.step();
        states[rank] = averager.save_state();
    });
    EXPECT_EQ(states[0], states[1]);
    on_ranks({3}, [&](int rank, ddp_group* group) {
        Trained m(group);
        ddp::Averager averager(m.context, 1);
        averager.set_outer();
        averager.load_state(states[rank % 2]);
        m.train(rank, 3);
        EXPECT_EQ(averager.step(), 3);
        EXPECT_EQ(averager.steps(), 4);
    });
}

void expect_refused(ddp::Averager& averager, const File& file, const char* why) {
    const File before = averager.save_state();
    ::expect_refused(
        {{why,
          kInvalid,
          {why},
          calling(ddp_averager_state_load, averager.get(), file.data(), file.size())}});
    EXPECT_EQ(averager.save_state(), before);
}

TEST(OuterOptimizerState, ThatDoesNotFitIsRefused) {
    on_ranks({1}, [](int rank, ddp_group* group) {
        Trained m(group), smaller(group, {5000, 0, 7}), other(group, {5000, 0, 8, 1}),
            larger(group, {5000, 0, 7, 1, 2});
        const auto made = [&](Trained& model, ddp_outer_kind kind) {
            ddp::Averager averager(model.context, 1);
            averager.set_outer(outer(kind, 0.5, 0.5, 1));
            for (int s = 0; s < 2; ++s) model.train(rank, s), averager.step();
            return averager;
        };
        ddp::Averager averager = made(m, DDP_OUTER_NESTEROV);
        const File good = averager.save_state();
        ddp::Averager slowmo = made(m, DDP_OUTER_SLOWMO), few = made(smaller, DDP_OUTER_NESTEROV),
                      shaped = made(other, DDP_OUTER_NESTEROV),
                      many = made(larger, DDP_OUTER_NESTEROV);
        expect_refused(slowmo, good, "of kind 2; here the kind is 3");
        expect_refused(few, good, "a parameter 'p3', which this one does not have");
        expect_refused(shaped, good, "'p2' is f32[7]; here it is f32[8]");
        expect_refused(many, good, "no outer parameter 'p4'");
        m.context.use_hook("powersgd");
        expect_refused(averager, m.context.save_hook_state(), "not the state of an averager");
        EXPECT_EQ(ddp_hook_state_load(m.context.get(), good.data(), good.size(), 0, nullptr),
                  DDP_ERROR_INVALID_ARGUMENT);
        File cut = good, changed = good;
        cut.pop_back();
        changed.back() ^= 1;
        expect_refused(averager, cut, "cut short");
        expect_refused(averager, changed, "checksum");
        averager.load_state(good);
    });
}

// Both ranks' averages end with an error that says this.
void expect_disagreement(const char* words,
                         const std::function<void(int rank, ddp::Averager&)>& prepare) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Trained m(group);
        ddp::Averager averager(m.context, 1);
        prepare(rank, averager);
        const Facts facts = facts_of([&] { averager.step(); });
        EXPECT_EQ(facts.status, DDP_ERROR_MISMATCH) << facts;
        EXPECT_THAT(facts.message, HasSubstr(words));
    });
}

TEST(OuterOptimizer, RanksThatDifferNotice) {
    expect_disagreement("different outer optimizers", [](int rank, ddp::Averager& averager) {
        averager.set_outer(outer(DDP_OUTER_SLOWMO, 1, 0.5, rank == 0 ? 0.1 : 0.2));
    });
    expect_disagreement("ddp_averager_set_outer", [](int rank, ddp::Averager& averager) {
        if (rank == 0) averager.set_outer();
    });
    File state;
    on_ranks({1}, [&](int, ddp_group* group) {
        Trained m(group);
        ddp::Averager averager(m.context, 1);
        averager.set_outer();
        averager.step();
        averager.set_steps(0);
        state = averager.save_state();
    });
    expect_disagreement("only some of them loaded its state",
                        [&](int rank, ddp::Averager& averager) {
                            averager.set_outer();
                            if (rank == 1) averager.load_state(state);
                        });
}

}  // namespace outer_optimizer_test
