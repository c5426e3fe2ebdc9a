// Outer steps of fragments that take turns, travel for some steps and are mixed in, against the
// formulas of Streaming DiLoCo with plain numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "hooks/eight_bits_reference.h"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace streaming_test {

constexpr int kPeriod = 6, kWarmup = 2;
// Empty, of one number, and larger than a block of the arithmetic.
const std::vector<std::int64_t> kSizes{3000, 2000, 7, 1, 4000, 0, 500};

struct Setting {
    int fragments, delay;
    double alpha;
    ddp_dtype sent;
    std::vector<int> fragment_of;  // of each parameter
    bool own = false;              // the program says so
};

// Cut by hand: no other runs have a smaller largest fragment.
const Setting kSettings[] = {
    {1, 0, 0, 0, {0, 0, 0, 0, 0, 0, 0}},        {1, 3, 0, 0, {0, 0, 0, 0, 0, 0, 0}},
    {1, 0, 0.25, 0, {0, 0, 0, 0, 0, 0, 0}},     {2, 0, 0, 0, {0, 0, 1, 1, 1, 1, 1}},
    {3, 1, 0.5, 0, {0, 1, 1, 1, 2, 2, 2}},      {3, 1, 0.5, DDP_BF16, {0, 1, 1, 1, 2, 2, 2}},
    {6, 0, 0.25, 0, {0, 1, 2, 3, 4, 4, 5}},     {2, 2, 0, 0, {0, 1, 0, 1, 0, 1, 1}, true},
    {3, 1, 0.5, DDP_U8, {0, 1, 1, 1, 2, 2, 2}},
};

std::string name_of(const Setting& s) {
    return std::to_string(s.fragments) + " fragments, delay " + std::to_string(s.delay) +
           ", alpha " + std::to_string(s.alpha) + ", sent as " + std::to_string(s.sent);
}

ddp_outer_options options_of(const Setting& s) {
    auto o = ddp::Averager::outer_defaults();
    o.fragments = s.fragments;
    o.delay = s.delay;
    o.alpha = s.alpha;
    o.sent_dtype = s.sent;
    return o;
}

// How far a rank's own optimizer moves a parameter in a step.
float move(int rank, int step, std::size_t param, std::size_t k) {
    return 0.1f *
           std::sin(static_cast<float>(1 + rank * 7 + static_cast<int>(param) * 3 + step * 5) *
                    static_cast<float>(k + 1));
}

struct Trained : Model {
    Trained(ddp_group* group, const Setting& setting)
        : Model(group, kSizes, true), averager(committed(), kPeriod, kWarmup) {
        averager.set_outer(options_of(setting));
        if (setting.own)
            averager.set_fragments({setting.fragment_of.begin(), setting.fragment_of.end()});
    }
    int step(int rank, int s) {
        for (std::size_t i = 0; i < data.size(); ++i)
            for (std::size_t k = 0; k < data[i].size(); ++k) data[i][k] -= move(rank, s, i, k);
        return averager.step();
    }
    // Not a copy of the vectors: the context knows where the values are.
    void take(const std::vector<std::vector<float>>& values) {
        for (std::size_t i = 0; i < data.size(); ++i)
            std::copy(values[i].begin(), values[i].end(), data[i].begin());
    }
    ddp::Averager averager;

private:
    ddp::Context& committed() {
        for (auto& values : data)
            for (std::size_t k = 0; k < values.size(); ++k)
                values[k] = std::cos(static_cast<float>(k));
        context.commit();
        return context;
    }
};

// The paper's loop, for all ranks at once, in f64.
class Reference {
public:
    Reference(int world, const Setting& setting) : setting_(setting) {
        std::vector<std::vector<double>> start;
        for (const std::int64_t size : kSizes) {
            start.emplace_back(static_cast<std::size_t>(size));
            for (std::size_t k = 0; k < start.back().size(); ++k)
                start.back()[k] = static_cast<double>(std::cos(static_cast<float>(k)));
        }
        models.assign(static_cast<std::size_t>(world), start);
        u_ = x = start;
        for (auto& values : u_) values.assign(values.size(), 0);
    }

    // Over how many ranks what changed is averaged.
    int step(int s) {
        for (std::size_t r = 0; r < models.size(); ++r)
            for (std::size_t i = 0; i < kSizes.size(); ++i)
                for (std::size_t k = 0; k < models[r][i].size(); ++k)
                    models[r][i][k] -= static_cast<double>(move(static_cast<int>(r), s, i, k));
        const int counted = s - kWarmup, spacing = kPeriod / setting_.fragments;
        const int world = static_cast<int>(models.size());
        if (counted < 0) return 0;
        if (counted == 0) {
            x = mean();
            models.assign(models.size(), x);
            return world;
        }
        if (counted % spacing == 0) {
            mean_ = mean();
            fragment_ = (counted / spacing - 1) % setting_.fragments;
            due_ = s + setting_.delay;
        }
        if (s != due_) return 0;
        mix();
        return world;
    }
    std::vector<std::vector<std::vector<double>>> models;
    std::vector<std::vector<double>> x;

private:
    std::vector<std::vector<double>> mean() const {
        auto sum = models[0];
        for (std::size_t i = 0; i < sum.size(); ++i)
            for (std::size_t k = 0; k < sum[i].size(); ++k) {
                for (std::size_t r = 1; r < models.size(); ++r) sum[i][k] += models[r][i][k];
                sum[i][k] /= static_cast<double>(models.size());
            }
        return sum;
    }
    void mix() {
        for (std::size_t i = 0; i < kSizes.size(); ++i) {
            if (setting_.fragment_of[i] != fragment_) continue;
            for (std::size_t k = 0; k < x[i].size(); ++k) {
                const double d = x[i][k] - mean_[i][k];
                u_[i][k] = 0.9 * u_[i][k] + d;
                x[i][k] -= 0.7 * (d + 0.9 * u_[i][k]);
                for (auto& model : models)
                    model[i][k] = setting_.alpha * model[i][k] + (1 - setting_.alpha) * x[i][k];
            }
        }
    }
    const Setting& setting_;
    std::vector<std::vector<double>> u_, mean_;
    int fragment_ = -1, due_ = -1;
};

// An outer gradient of 0.5 is rounded by at most 2^-9 of it, or twice by 1/254, and rates carry that
// on.
double tolerance(const Setting& s) {
    return s.sent == DDP_BF16 ? 2e-2 : s.sent == DDP_U8 ? 4e-2 : 1e-4;
}

void expect_near(const std::vector<std::vector<float>>& values,
                 const std::vector<std::vector<double>>& expected, double tolerance) {
    for (std::size_t i = 0; i < values.size(); ++i)
        for (std::size_t k = 0; k < values[i].size(); ++k)
            ASSERT_NEAR(values[i][k], expected[i][k], tolerance) << "p" << i << " number " << k;
}

TEST(Streaming, FollowsThePaperWithTheSameOuterBitsOnEveryRank) {
    for (const char* backend : {"threads", "threads-caller", "tcp", "shm"})
        for (const Setting& setting : kSettings)
            for (int world : {1, 3}) {
                SCOPED_TRACE(std::string(backend) + ", world " + std::to_string(world) + ", " +
                             name_of(setting));
                constexpr int kSteps = 22;
                Reference reference(world, setting);
                std::vector<int> ranks;
                for (int s = 0; s < kSteps; ++s) ranks.push_back(reference.step(s));
                std::vector<std::vector<unsigned char>> states(static_cast<std::size_t>(world));
                on_ranks({world, backend}, [&](int rank, ddp_group* group) {
                    Trained m(group, setting);
                    for (int s = 0; s < kSteps; ++s)
                        EXPECT_EQ(m.step(rank, s), ranks[static_cast<std::size_t>(s)]) << s;
                    expect_near(m.data, reference.models[static_cast<std::size_t>(rank)],
                                tolerance(setting));
                    states[static_cast<std::size_t>(rank)] = m.averager.save_state();
                    m.averager.go_back();
                    expect_near(m.data, reference.x, tolerance(setting));
                });
                for (const auto& state : states) EXPECT_EQ(state, states[0]);
            }
}

// At every step, also while a fragment is on its way.
TEST(Streaming, GoesOnFromAStateWithTheSameBits) {
    for (const Setting& setting : kSettings)
        on_ranks({2}, [&](int rank, ddp_group* group) {
            SCOPED_TRACE(name_of(setting));
            constexpr int kSteps = 18;
            Trained m(group, setting);
            std::vector<std::vector<unsigned char>> states;
            std::vector<std::vector<std::vector<float>>> values;
            for (int s = 0; s < kSteps; ++s) {
                states.push_back(m.averager.save_state());
                values.push_back(m.data);
                m.step(rank, s);
            }
            for (int from = 0; from < kSteps; ++from) {
                Trained resumed(group, setting);
                resumed.take(values[static_cast<std::size_t>(from)]);
                resumed.averager.load_state(states[static_cast<std::size_t>(from)]);
                EXPECT_EQ(resumed.averager.save_state(), states[static_cast<std::size_t>(from)]);
                const int until = std::min(from + 4, kSteps - 1);
                for (int s = from; s < until; ++s) resumed.step(rank, s);
                EXPECT_EQ(resumed.data, values[static_cast<std::size_t>(until)]) << "from " << from;
                EXPECT_EQ(resumed.averager.save_state(), states[static_cast<std::size_t>(until)]);
            }
        });
}

// Outer gradients that are those of the hook quantize's test, from outer parameters of 0, with a
// step of 1.
struct InEightBits : Model {
    InEightBits(ddp_group* group, std::int64_t delay,
                const std::vector<std::int64_t>& sizes = eight_bits_test::kSizes)
        : Model(group, sizes, true), averager(committed(), 2) {
        auto o = ddp::Averager::outer_defaults();
        o.kind = DDP_OUTER_SGD;
        o.learning_rate = 1;
        o.momentum = 0;
        o.delay = delay;
        o.sent_dtype = DDP_U8;
        averager.set_outer(o);
    }
    int step() { return averager.step(); }
    void move(int rank, int number) {
        for (std::size_t p = 0; p < data.size(); ++p) {
            const auto d = eight_bits_test::gradient(rank, static_cast<int>(p), number);
            for (std::size_t k = 0; k < d.size(); ++k) data[p][k] = -d[k];
        }
    }
    ddp::Averager averager;

private:
    ddp::Context& committed() {
        for (auto& values : data) std::fill(values.begin(), values.end(), 0.0f);
        context.commit();
        return context;
    }
};

TEST(Streaming, EightBitsHaveTheBitsOfThePlainSum) {
    for (int world = 1; world <= 9; ++world) {
        std::vector<eight_bits_test::Floats> expected;
        for (std::size_t p = 0; p < eight_bits_test::kSizes.size(); ++p) {
            expected.push_back(world == 1 ? eight_bits_test::gradient(0, static_cast<int>(p), 0)
                                          : eight_bits_test::reference(eight_bits_test::kFormats[0],
                                                                       static_cast<int>(p), 0,
                                                                       world, 256));
            for (float& v : expected.back()) v = -v;
        }
        for (const char* backend : {"shm", "tcp", "hierarchical", "threads"})
            on_ranks({world, backend}, [&](int rank, ddp_group* group) {
                SCOPED_TRACE(backend + std::to_string(world));
                for (const std::int64_t delay : {0, 1}) {
                    InEightBits m(group, delay);
                    EXPECT_EQ(m.step(), world) << "the first average";
                    EXPECT_EQ(m.step(), 0);
                    m.move(rank, 0);
                    if (delay == 1) {
                        EXPECT_EQ(m.step(), 0) << "the model leaves";
                    }
                    EXPECT_EQ(m.step(), world);
                    for (std::size_t p = 0; p < expected.size(); ++p)
                        for (std::size_t k = 0; k < expected[p].size(); ++k)
                            ASSERT_EQ(m.data[p][k], expected[p][k]) << "p" << p << " number " << k;
                }
            });
    }
}

TEST(Streaming, ANaNInEightBitsReachesEveryRankAndNoOtherParameter) {
    on_ranks({3, "tcp"}, [](int rank, ddp_group* group) {
        InEightBits m(group, 0);
        m.step();
        m.step();
        m.move(rank, 0);
        if (rank == 1) m.data[6][4999] = std::nanf("");
        EXPECT_EQ(m.step(), 3);
        for (std::size_t p = 0; p < m.data.size(); ++p)
            for (const float value : m.data[p]) ASSERT_EQ(std::isnan(value), p == 6) << "p" << p;
    });
}

// Several messages of 25 MiB of numbers, and links that take turns.
TEST(Streaming, ALargeFragmentTravelsInEightBitsInParts) {
    using eight_bits_test::Floats, eight_bits_test::packed;
    const std::vector<std::int64_t> sizes{7'000'000, 10, 300};
    const auto d = [&](int rank, std::size_t p) {
        Floats x(static_cast<std::size_t>(sizes[p]));
        for (std::size_t k = 0; k < x.size(); ++k)
            x[k] = static_cast<float>(static_cast<int>(k * 7 % 1013) - 500 - rank) / 1024;
        return x;
    };
    const eight_bits_test::Format& int8 = eight_bits_test::kFormats[0];
    std::vector<Floats> expected;
    for (std::size_t p = 0; p < sizes.size(); ++p) {
        const Floats one = packed(int8, d(0, p), 256), other = packed(int8, d(1, p), 256);
        Floats mean(one.size());
        for (std::size_t k = 0; k < mean.size(); ++k) mean[k] = (one[k] + other[k]) / 2;
        expected.push_back(packed(int8, mean, 256));
    }
    for (const unsigned links : {0u, 3u}) {
        RankOptions options{2, "tcp"};
        options.round_robin = links;
        on_ranks(options, [&](int rank, ddp_group* group) {
            SCOPED_TRACE(links);
            InEightBits m(group, 1, sizes);
            m.step();
            m.step();
            for (std::size_t p = 0; p < sizes.size(); ++p) {
                const Floats x = d(rank, p);
                for (std::size_t k = 0; k < x.size(); ++k) m.data[p][k] = -x[k];
            }
            EXPECT_EQ(m.step(), 0);
            EXPECT_EQ(m.step(), 2);
            for (std::size_t p = 0; p < sizes.size(); ++p)
                for (std::size_t k = 0; k < expected[p].size(); ++k)
                    ASSERT_EQ(m.data[p][k], -expected[p][k]) << "p" << p << " number " << k;
        });
    }
}

const Setting kTwo{2, 2, 0.5, 0, {0, 0, 1, 1, 1, 1, 1}};

// Two ranks save while the first fragment is on its way, and three go on with the mean of the two.
TEST(Streaming, AStateIsForAnyWorld) {
    const int sends = kWarmup + 3;
    Reference reference(2, kTwo);
    for (int s = 0; s <= sends + 2; ++s) reference.step(s);
    std::vector<unsigned char> state;
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Trained m(group, kTwo);
        for (int s = 0; s <= sends; ++s) m.step(rank, s);
        const auto saved = m.averager.save_state();
        if (rank == 0) state = saved;
    });
    on_ranks({3}, [&](int rank, ddp_group* group) {
        Trained m(group, kTwo);
        m.averager.load_state(state);
        EXPECT_EQ(m.step(rank, sends + 1), 0);
        EXPECT_EQ(m.step(rank, sends + 2), 3);
        m.averager.go_back();
        EXPECT_EQ(m.averager.steps(), sends + 3);
        expect_near(m.data, reference.x, 1e-4);
    });
}

TEST(Streaming, CountsTheBytesOfEachFragmentInItsTurn) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        for (const Setting& setting : kSettings) {
            SCOPED_TRACE(name_of(setting));
            Trained m(group, setting);
            std::uint64_t in_8_bits = 0;
            for (int s = 0; s < kWarmup + 2 * kPeriod + 1; ++s) {
                const std::uint64_t before = m.context.stats().averaged_bytes;
                m.step(rank, s);
                const int counted = s - kWarmup, spacing = kPeriod / setting.fragments;
                std::uint64_t numbers = 0;
                const int fragment = (counted / spacing - 1) % setting.fragments;
                for (std::size_t i = 0; i < kSizes.size(); ++i)
                    if (counted == 0 || (counted > 0 && counted % spacing == 0 &&
                                         setting.fragment_of[i] == fragment))
                        numbers += static_cast<std::uint64_t>(kSizes[i]);
                const std::uint64_t bytes = m.context.stats().averaged_bytes - before;
                if (setting.sent == DDP_U8 && counted > 0) {
                    in_8_bits += numbers;
                    continue;
                }
                const bool small = setting.sent == DDP_BF16 && counted > 0;
                EXPECT_EQ(bytes, numbers * (small ? 2 : 4)) << "step " << s;
            }
            // A share for each rank at once, and this rank's share of the means when they are there.
            m.averager.save_state();
            std::uint64_t whole = 0;
            for (const std::int64_t size : kSizes) whole += static_cast<std::uint64_t>(size);
            const std::uint64_t sent = m.context.stats().averaged_bytes - 4 * whole;
            if (setting.sent != DDP_U8) continue;
            EXPECT_GE(sent, in_8_bits * 3 / 2);
            EXPECT_LE(sent, in_8_bits * 3 / 2 * 260 / 256 + 5 * 3 * 260) << "blocks are whole";
        }
    });
}

TEST(Streaming, AnotherGroupDropsWhatIsOnItsWay) {
    const int sends = kWarmup + 3;
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Trained m(group, kTwo);
        for (int s = 0; s <= sends; ++s) m.step(rank, s);
        const auto other = BorrowedGroup(group).split(0, rank);
        m.context.set_group(other);
        EXPECT_EQ(m.step(rank, sends + 1), 0);
        EXPECT_EQ(m.step(rank, sends + 2), 0) << "nothing is mixed";
        EXPECT_EQ(m.step(rank, sends + 3), 0) << "the other fragment leaves";
        m.step(rank, sends + 4);
        EXPECT_EQ(m.step(rank, sends + 5), 2);
    });
}

TEST(Streaming, IsForAveragersWithOnePeriod) {
    on_ranks({2}, [](int, ddp_group* group) {
        Model m(group, {4, 4}, true);
        m.context.commit();
        ddp::Averager averager(m.context, {2, 4}, {1, 2});
        auto o = options_of(kTwo);
        for (const bool fragments : {false, true}) {
            o.alpha = o.delay = 0;
            o.fragments = fragments ? 2 : 1;
            o.sent_dtype = fragments ? 0 : DDP_BF16;
            const Facts facts = facts_of([&] { averager.set_outer(o); });
            EXPECT_EQ(facts.status, DDP_ERROR_UNSUPPORTED) << facts;
            EXPECT_THAT(facts.message, HasSubstr("2 periods"));
        }
    });
}

TEST(Streaming, IsFreedWithAFragmentOnItsWay) {
    on_ranks({2, "tcp"}, [](int rank, ddp_group* group) {
        Trained m(group, kTwo);
        Setting in_8_bits = kTwo;
        in_8_bits.sent = DDP_U8;
        Trained other(group, in_8_bits);
        for (int s = 0; s <= kWarmup + 3; ++s) other.step(rank, s);
        for (int s = 0; s <= kWarmup + 3; ++s) m.step(rank, s);
    });
}

// The turn after ranks differ fails on both with these words.
void expect_disagreement(const char* words,
                         const std::function<void(int rank, ddp::Averager&)>& change) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        SCOPED_TRACE(words);
        Trained m(group, kTwo);
        for (int s = 0; s <= kWarmup + 3; ++s) m.step(rank, s);
        change(rank, m.averager);
        const Facts facts = facts_of([&] {
            for (int s = 0; s < 2 * kPeriod; ++s) m.step(rank, s);
        });
        EXPECT_EQ(facts.status, DDP_ERROR_MISMATCH) << facts;
        EXPECT_THAT(facts.message, HasSubstr(words));
    });
}

TEST(Streaming, RanksThatDifferNotice) {
    const auto set = [](const std::function<void(ddp_outer_options&)>& change) {
        return [change](int rank, ddp::Averager& averager) {
            auto o = options_of(kTwo);
            if (rank == 1) change(o);
            averager.set_outer(o);
        };
    };
    constexpr const char* kFragments = "the same fragments, sent_dtype, delay and alpha";
    expect_disagreement(kFragments, set([](auto& o) { o.fragments = 1; }));
    expect_disagreement(kFragments, set([](auto& o) { o.delay = 1; }));
    expect_disagreement(kFragments, set([](auto& o) { o.alpha = 0.25; }));
    expect_disagreement(kFragments, set([](auto& o) { o.sent_dtype = DDP_BF16; }));
    expect_disagreement(kFragments, set([](auto& o) { o.sent_dtype = DDP_U8; }));
    expect_disagreement(kFragments, [](int rank, ddp::Averager& averager) {
        averager.set_fragments({0, 1, 1, 1, 1, 1, rank});
    });
    expect_disagreement("different outer optimizers", set([](auto& o) { o.learning_rate = 0.5; }));
    // One rank drops what the other mixes in.
    expect_disagreement("different outer optimizers", [](int rank, ddp::Averager& averager) {
        if (rank == 1) averager.set_steps(averager.steps());
    });
    expect_disagreement("different", [](int rank, ddp::Averager& averager) {
        if (rank == 1) averager.set_steps(averager.steps() + 1);
    });
}

}  // namespace streaming_test
