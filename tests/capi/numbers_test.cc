// check.h: NaN and infinity in gradients, refused or skipped, and replicas that drift apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "capi/lone_context.h"
#include "ddp/ddp.hpp"
#include "hooks/any_model.h"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace numbers_test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ddp_context_options with(std::uint32_t flags, std::uint64_t cap = 64) {
    auto options = ddp::Context::defaults();
    options.flags = flags;
    options.bucket_cap_bytes = cap;
    return options;
}

// The messages of several ranks, which must be one.
class Messages {
public:
    void add(const std::string& message) {
        const std::lock_guard lock(mutex_);
        all_.insert(message);
    }
    std::string one() const {
        EXPECT_EQ(all_.size(), 1u);
        return all_.empty() ? "" : *all_.begin();
    }

private:
    std::mutex mutex_;
    std::set<std::string> all_;
};

enum class Home { kCopy, kView, kInPlace };
struct Case {
    Home home;
    const char* backend;
};

using Gradients = std::vector<std::vector<float>>;

// In place, operations of a broken group may write until the group is freed, which comes after a
// Net: the memory stays.
Gradients& lasting_gradients() {
    static std::mutex mutex;
    static std::deque<Gradients> all;
    const std::lock_guard lock(mutex);
    return all.emplace_back();
}

// Parameters p0, p1, ... of f32.
struct Net {
    Net(ddp_group* group, std::vector<std::int64_t> sizes, Home home,
        const ddp_context_options& options)
        : borrowed(group), context(borrowed, options), home_(home) {
        for (const std::int64_t size : sizes) {
            own.emplace_back(static_cast<std::size_t>(size));
            std::string name = std::to_string(own.size() - 1);
            name.insert(0, 1, 'p');
            values.emplace_back(options.flags & DDP_CONTEXT_SHARD ? own.back().size() : 0);
            context.add_param<float>(name, {size},
                                     values.back().empty() ? nullptr : values.back().data(),
                                     home == Home::kView ? nullptr : own.back().data(),
                                     home == Home::kInPlace ? DDP_PARAM_IN_PLACE : 0);
        }
    }
    std::size_t size(int p) const { return own[static_cast<std::size_t>(p)].size(); }
    float* grad(int p) {
        return home_ == Home::kView ? context.grad_view<float>(p)
                                    : own[static_cast<std::size_t>(p)].data();
    }
    void fill(int p, float value) { std::fill_n(grad(p), size(p), value); }
    bool holds(int p, float value) {
        return std::all_of(grad(p), grad(p) + size(p), [value](float x) { return x == value; });
    }
    // The gradients of this rank are value; spoil may change them.
    void announce(float value, const std::function<void(int p, float* gradient)>& spoil = {}) {
        for (int p = static_cast<int>(own.size()) - 1; p >= 0; --p) {
            fill(p, value);
            if (spoil) spoil(p, grad(p));
            context.grad_ready(p);
        }
    }

    BorrowedGroup borrowed;
    ddp::Context context;
    Gradients& own = lasting_gradients();
    Gradients values;  // with shards

private:
    Home home_;
};

class NumbersTest : public testing::TestWithParam<Case> {
protected:
    void run(int world, const std::function<void(int rank, ddp_group* group)>& body) {
        on_ranks({world, GetParam().backend}, body);
    }
    static Home home() { return GetParam().home; }
};

std::string name_of(const testing::TestParamInfo<Case>& test) {
    const char* homes[] = {"Copy", "View", "InPlace"};
    return std::string(test.param.backend) + homes[static_cast<int>(test.param.home)];
}

INSTANTIATE_TEST_SUITE_P(All, NumbersTest,
                         testing::Values(Case{Home::kCopy, "threads"}, Case{Home::kView, "threads"},
                                         Case{Home::kInPlace, "threads"}, Case{Home::kCopy, "shm"},
                                         Case{Home::kView, "shm"}, Case{Home::kView, "tcp"},
                                         Case{Home::kCopy, "gloo"}),
                         name_of);

TEST_P(NumbersTest, ABadGradientIsRefusedOnEveryRank) {
    for (const float bad : {kNan, kInfinity, -kInfinity})
        run(3, [&](int rank, ddp_group* group) {
            Net net(group, {20, 30, 5}, home(), with(DDP_CONTEXT_REFUSE_NONFINITE));
            net.context.commit();
            net.announce(1);
            net.context.finalize();
            const ddp::Error error = error_of([&] {
                net.borrowed.barrier();  // nobody is still in the step before when the group breaks
                net.announce(2, [&](int p, float* gradient) {
                    if (rank == 1 && p == 1) gradient[7] = gradient[29] = bad;
                });
                net.context.finalize();
            });
            EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_NONFINITE, 1, 1, error.bucket(), 1}));
            const char* text = std::isnan(bad) ? "nan" : bad > 0 ? "inf" : "-inf";
            EXPECT_THAT(error.what(), HasSubstr(std::string("element 7 of 30 is ") + text));
            // No result has reached a gradient: that of a copy is what this rank has written, if it
            // had begun the step.
            EXPECT_TRUE(home() != Home::kCopy || rank == 1 || net.holds(1, 1) || net.holds(1, 2));
        });
}

TEST_P(NumbersTest, TheCallThatAnnouncesABadGradientFails) {
    run(2, [&](int rank, ddp_group* group) {
        Net net(group, {20, 30}, home(), with(DDP_CONTEXT_REFUSE_NONFINITE));
        net.context.commit();
        if (rank == 1) {
            net.borrowed.barrier();
            net.fill(1, kNan);
            EXPECT_EQ(error_of([&] { net.context.grad_ready(1); }).status(), DDP_ERROR_NONFINITE);
        } else {
            EXPECT_EQ(error_of([&] {
                          net.borrowed.barrier();
                          net.announce(1);
                          net.context.finalize();
                      }).status(),
                      DDP_ERROR_NONFINITE);
        }
    });
}

TEST_P(NumbersTest, AllRanksSkipAStepAndTheNextIsRight) {
    for (const int world : {1, 3}) {
        Messages messages;
        run(world, [&](int rank, ddp_group* group) {
            Net net(group, {20, 30, 5}, home(), with(DDP_CONTEXT_SKIP_NONFINITE));
            net.context.commit();
            const float mean = static_cast<float>(world - 1) / 2;
            for (int step = 0; step < 6; ++step) {
                const bool bad = step == 0 || step == 3 || step == 4;
                net.context.step_begin();
                net.announce(static_cast<float>(step + rank), [&](int p, float* gradient) {
                    if (bad && rank == world - 1 && p == 2) gradient[4] = kNan;
                });
                if (!bad) {
                    net.context.finalize();
                    for (int p : {0, 1, 2})
                        EXPECT_TRUE(net.holds(p, static_cast<float>(step) + mean));
                    continue;
                }
                const ddp::Error error = error_of([&] { net.context.finalize(); });
                EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_NONFINITE, world - 1, 2, -1, step}));
                if (step == 3) messages.add(error.what());
                for (int p : {0, 1})
                    EXPECT_TRUE(
                        net.holds(p, home() == Home::kCopy ? static_cast<float>(step + rank) : 0));
                const bool spoilt = home() == Home::kCopy && rank == world - 1;
                EXPECT_EQ(std::isnan(net.grad(2)[4]), spoilt);
                if (home() != Home::kCopy) {
                    EXPECT_TRUE(net.holds(2, 0));
                }
            }
        });
        messages.one();
    }
}

TEST_P(NumbersTest, SeveralRanksAreNamedAndTheFirstParameter) {
    Messages messages;
    run(3, [&](int rank, ddp_group* group) {
        Net net(group, {20, 30, 5}, home(), with(DDP_CONTEXT_SKIP_NONFINITE));
        net.context.commit();
        net.announce(1, [&](int p, float* gradient) {
            if (rank > 0 && p > 0) gradient[0] = -kInfinity;
        });
        const Facts facts = facts_of([&] { net.context.finalize(); });
        EXPECT_EQ(facts, (Facts{DDP_ERROR_NONFINITE, 1, 1, -1, 0}));
        messages.add(facts.message);
    });
    EXPECT_THAT(messages.one(), HasSubstr("; rank 2 has"));
}

// Finite on all ranks: no rank is to blame.
TEST_P(NumbersTest, AnOverflowOfTheSumIsFound) {
    for (const std::uint32_t flag : {DDP_CONTEXT_REFUSE_NONFINITE, DDP_CONTEXT_SKIP_NONFINITE})
        run(2, [&](int rank, ddp_group* group) {
            auto options = with(flag);
            options.reduction = DDP_REDUCTION_SUM;
            Net net(group, {20, 30}, home(), options);
            net.context.commit();
            const ddp::Error error = error_of([&] {
                net.announce(1, [&](int p, float* gradient) {
                    if (p == 1) gradient[11] = 3e38f;
                });
                net.context.finalize();
            });
            EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_NONFINITE, -1, 1, error.bucket(), 0}));
            EXPECT_THAT(error.what(), HasSubstr("the result for 'p1'"));
            if (flag == DDP_CONTEXT_REFUSE_NONFINITE) return;
            net.announce(static_cast<float>(rank));
            net.context.finalize();
            EXPECT_TRUE(net.holds(1, 1));
        });
}

TEST_P(NumbersTest, AWaitForAParameterTellsOfTheSkip) {
    run(2, [&](int rank, ddp_group* group) {
        Net net(group, {20, 30, 5}, home(), with(DDP_CONTEXT_SKIP_NONFINITE));
        int reduced = 0;
        net.context.set_reduced_callback([&](ddp_param, bool) { ++reduced; });
        net.context.commit();
        for (int step = 0; step < 4; ++step) {
            net.announce(1, [&](int p, float* gradient) {
                if (step % 2 == 0 && rank == 0 && p == 0) gradient[0] = kNan;
            });
            net.context.finalize_async();
            for (int p : {2, 1, 0}) {
                if (step % 2 == 1) {
                    net.context.wait(p);
                    EXPECT_TRUE(net.holds(p, 1));
                } else {
                    EXPECT_EQ(error_of([&] { net.context.wait(p); }).status(), DDP_ERROR_NONFINITE);
                }
            }
            if (step % 2 == 1)
                net.context.finalize();
            else
                EXPECT_EQ(error_of([&] { net.context.finalize(); }).status(), DDP_ERROR_NONFINITE);
        }
        EXPECT_EQ(reduced, 6);
    });
}

// A gradient that accumulates is looked at when it is reduced. Unused and frozen ones stay what
// they were.
TEST_P(NumbersTest, UnsyncedStepsUnusedAndFrozenParameters) {
    run(2, [&](int rank, ddp_group* group) {
        Net net(group, {20, 30, 5, 6}, home(),
                with(DDP_CONTEXT_SKIP_NONFINITE | DDP_CONTEXT_FIND_UNUSED));
        net.context.commit();
        net.context.set_frozen({3}, true);
        for (int p : {0, 1, 2, 3}) net.fill(p, 7);
        net.context.set_sync(false);
        net.fill(0, rank == 0 ? kNan : 1);
        net.context.grad_ready(0);
        net.context.finalize();
        net.context.set_sync(true);
        net.fill(1, 1);
        net.context.grad_ready(1);
        const ddp::Error error = error_of([&] { net.context.finalize(); });
        EXPECT_EQ(error.status(), DDP_ERROR_NONFINITE);
        EXPECT_EQ(error.rank(), 0);
        EXPECT_EQ(error.step(), 1);
        EXPECT_TRUE(net.holds(2, 7));
        EXPECT_TRUE(net.holds(3, 7));
        for (int p : {0, 1}) {
            net.fill(p, static_cast<float>(rank));
            net.context.grad_ready(p);
        }
        net.context.finalize();
        for (int p : {0, 1}) EXPECT_TRUE(net.holds(p, 0.5f));
        EXPECT_TRUE(net.holds(2, 7));
    });
}

TEST_P(NumbersTest, ADiscardedStepIsNotLookedAt) {
    run(2, [&](int rank, ddp_group* group) {
        Net net(group, {20, 30}, home(), with(DDP_CONTEXT_SKIP_NONFINITE));
        net.context.commit();
        net.announce(rank == 0 ? kNan : 1);
        net.context.discard_step();
        net.announce(static_cast<float>(rank));
        net.context.finalize();
        EXPECT_TRUE(net.holds(0, 0.5f));
    });
}

TEST_P(NumbersTest, WithACheckOfTheStepToo) {
    run(2, [&](int rank, ddp_group* group) {
        auto options = with(DDP_CONTEXT_SKIP_NONFINITE | DDP_CONTEXT_CHECK);
        Net net(group, {20, 30}, home(), options);
        net.context.commit();
        for (int step = 0; step < 6; ++step) {
            net.announce(static_cast<float>(step + rank), [&](int, float* gradient) {
                if (step == 2 && rank == 1) gradient[1] = kNan;
            });
            if (step == 2)
                EXPECT_EQ(error_of([&] { net.context.finalize(); }).status(), DDP_ERROR_NONFINITE);
            else
                net.context.finalize();
        }
        EXPECT_TRUE(net.holds(1, 5.5f));
    });
}

TEST(Numbers, ARankOfWeightZeroMayHaveAnything) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        auto options = with(DDP_CONTEXT_SKIP_NONFINITE);
        options.reduction = DDP_REDUCTION_WEIGHTED_MEAN;
        Net net(group, {20}, Home::kCopy, options);
        net.context.add_param<float>("rows", {4, 2}, nullptr, nullptr, DDP_PARAM_SPARSE);
        net.context.commit();
        net.context.set_weight(rank);
        net.context.step_begin();
        const float row[] = {rank == 0 ? kNan : 1, 2};
        net.context.sparse_grad_ready(1, {3}, row);
        net.announce(rank == 0 ? kNan : 3);
        net.context.finalize();
        EXPECT_TRUE(net.holds(0, 3));
        const auto [indices, values] = net.context.sparse_gradient<float>(1);
        EXPECT_EQ(indices, std::vector<std::int64_t>{3});
        EXPECT_EQ(values[0], 1);
    });
}

TEST(Numbers, RanksWithoutInputsSkipToo) {
    on_ranks({3, "threads"}, [](int rank, ddp_group* group) {
        Net net(group, {20}, Home::kView, with(DDP_CONTEXT_SKIP_NONFINITE | DDP_CONTEXT_JOIN));
        net.context.commit();
        for (int step = 0; step < 2 + 2 * rank; ++step) {
            net.context.step_begin();
            const bool bad = rank == 2 && step == 3;
            net.announce(1, [&](int, float* gradient) {
                if (bad) gradient[3] = kNan;
            });
            if (step == 3)
                EXPECT_EQ(error_of([&] { net.context.finalize(); }).status(), DDP_ERROR_NONFINITE);
            else
                net.context.finalize();
        }
        net.context.join();
    });
}

TEST(Numbers, TheFirstStepOfAStaticGraphMayBeSkipped) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        Net net(group, {20, 30, 5}, Home::kView,
                with(DDP_CONTEXT_SKIP_NONFINITE | DDP_CONTEXT_STATIC_GRAPH));
        net.context.commit();
        for (int step = 0; step < 3; ++step) {
            for (int p : {1, 0}) {
                net.fill(p, step == 0 && rank == 1 ? kNan : static_cast<float>(rank));
                net.context.grad_ready(p);
            }
            if (step == 0)
                EXPECT_EQ(error_of([&] { net.context.finalize(); }).status(), DDP_ERROR_NONFINITE);
            else
                net.context.finalize();
        }
        EXPECT_TRUE(net.holds(1, 0.5f));
    });
}

TEST(Numbers, EveryTypeIsLookedAt) {
    const std::vector<AnyParam> params{{DDP_F16, 33}, {DDP_BF16, 34}, {DDP_F32, 35}, {DDP_F64, 36},
                                       {DDP_C64, 37}, {DDP_C128, 38}, {DDP_I32, 39}, {DDP_U8, 40}};
    for (const bool view : {false, true})
        for (const std::uint32_t flag : {DDP_CONTEXT_REFUSE_NONFINITE, DDP_CONTEXT_SKIP_NONFINITE})
            for (int victim = 0; victim < 6; ++victim)
                on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
                    AnyModel m(group, params, view, with(flag, 0));
                    m.context.commit();
                    const auto step = [&](bool bad) {
                        m.step([&](int i) {
                            Numbers values = some_numbers(m.param(i), rank, 0);
                            if (bad && rank == 1 && i == victim)
                                values[21 * (libddp::is_complex(m.param(i).dtype) ? 2 : 1)] = kNan;
                            return values;
                        });
                    };
                    step(false);
                    const Bytes good = m.bytes();
                    const ddp::Error error = error_of([&] {
                        BorrowedGroup(group).barrier();
                        step(true);
                    });
                    EXPECT_EQ(facts_of(error),
                              (Facts{DDP_ERROR_NONFINITE, 1, victim, error.bucket(), 1}));
                    EXPECT_THAT(error.what(), HasSubstr("element 21 of"));
                    if (flag == DDP_CONTEXT_REFUSE_NONFINITE) return;
                    step(false);
                    EXPECT_EQ(m.bytes(), good);
                });
}

TEST(Numbers, RowsAreLookedAt) {
    for (const std::uint32_t flag : {DDP_CONTEXT_REFUSE_NONFINITE, DDP_CONTEXT_SKIP_NONFINITE})
        on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
            BorrowedGroup borrowed(group);
            ddp::Context context(borrowed, with(flag));
            context.add_param<float>("rows", {10, 3}, nullptr, nullptr, DDP_PARAM_SPARSE);
            context.commit();
            const auto step = [&](float value) {
                const float rows[] = {1, 1, 1, 1, value, 1};
                context.sparse_grad_ready(0, {2, rank == 0 ? 8 : 7}, rows);
                context.finalize();
            };
            step(1);
            const ddp::Error error = error_of([&] {
                borrowed.barrier();
                step(rank == 1 ? kInfinity : 1);
            });
            EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_NONFINITE, 1, 0, error.bucket(), 1}));
            EXPECT_THAT(error.what(), HasSubstr("element 22 of 30"));
            if (flag == DDP_CONTEXT_REFUSE_NONFINITE) return;
            EXPECT_TRUE(context.sparse_gradient<float>(0).first.empty());
            step(1);
            EXPECT_EQ(context.sparse_gradient<float>(0).first,
                      (std::vector<std::int64_t>{2, 7, 8}));
        });
}

TEST(Numbers, FactorsAreLookedAt) {
    for (const bool right : {false, true})
        for (const std::uint32_t flag : {DDP_CONTEXT_REFUSE_NONFINITE, DDP_CONTEXT_SKIP_NONFINITE})
            on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
                BorrowedGroup borrowed(group);
                ddp::Context context(borrowed, with(flag));
                std::vector<float> grad(12);
                context.add_param<float>("matrix", {3, 4}, nullptr, grad.data(),
                                         DDP_PARAM_FACTORED);
                context.commit();
                const auto step = [&](float value) {
                    float left[] = {1, 1, 1}, other[] = {2, 2, 2, 2};
                    (right ? other[2] : left[2]) *= value;
                    context.factors_grad_ready(0, left, other, 1);
                    context.finalize();
                };
                step(1);
                const ddp::Error error = error_of([&] {
                    borrowed.barrier();
                    step(rank == 0 ? kNan : 1);
                });
                EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_NONFINITE, 0, 0, error.bucket(), 1}));
                EXPECT_THAT(error.what(),
                            HasSubstr(right ? "the right factor" : "the left factor"));
                if (flag == DDP_CONTEXT_REFUSE_NONFINITE) return;
                step(1);
                EXPECT_EQ(grad, std::vector<float>(12, 2));
            });
}

// The state of a hook does not get bad, and models stay alike where the hook keeps them so.
TEST(Numbers, EveryHookGoesOnAfterASkip) {
    const std::pair<const char*, const char*> hooks[] = {
        {"allreduce", ""},
        {"noop", ""},
        {"fp16", ""},
        {"bf16", ""},
        {"powersgd", "start=0,min_rate=0.1"},
        {"batched_powersgd", "start=0,min_rate=0.1"},
        {"quantize_per_tensor", "min_elements=0"},
        {"quantize_per_channel", "min_elements=0"},
        {"quantize", ""},
        {"onebit", "min_elements=0"},
        {"topk", "min_elements=0"},
        {"chunks", "chunk=16,momentum=0.9,warmup=0"},
        {"post_local_sgd", "start=3"},
        {"fp16(powersgd)", "start=0,min_rate=0.1"}};
    for (const auto& [hook, options] : hooks)
        for (const std::uint32_t flag :
             {DDP_CONTEXT_SKIP_NONFINITE, DDP_CONTEXT_REFUSE_NONFINITE}) {
            const bool refused = flag == DDP_CONTEXT_REFUSE_NONFINITE;
            // ranks do not wait for each other
            if (refused && std::string(hook) == "noop") continue;
            on_ranks(
                {2, "threads"}, [&, hook = hook, options = options](int rank, ddp_group* group) {
                    const testing::ScopedTrace trace("", 0, hook);
                    BorrowedGroup borrowed(group);
                    ddp::Context context(borrowed, with(flag, 0));
                    std::vector<float> grads[2];
                    for (int p : {0, 1}) {
                        grads[p].resize(600);
                        context.add_param<float>(p == 0 ? "a" : "b", {20, 30}, nullptr,
                                                 grads[p].data());
                    }
                    context.use_hook(hook, options);
                    context.commit();
                    for (int step = 0; step < 8; ++step) {
                        const bool bad = step == 2 || step == 5;
                        const auto run = [&] {
                            for (int p : {1, 0}) {
                                for (std::size_t i = 0; i < 600; ++i)
                                    grads[p][i] = std::sin(static_cast<float>(i + 1) *
                                                           static_cast<float>(step + rank + 1));
                                if (bad && rank == 1 && p == 0) grads[p][77] = kNan;
                                context.grad_ready(p);
                            }
                            context.finalize();
                        };
                        if (bad) {
                            const ddp::Error error = error_of([&] {
                                borrowed.barrier();
                                run();
                            });
                            EXPECT_EQ(error.status(), DDP_ERROR_NONFINITE);
                            EXPECT_EQ(error.rank(), 1);
                            EXPECT_EQ(error.param(), 0);
                            if (refused) return;
                            continue;
                        }
                        run();
                        for (const auto& grad : grads)
                            for (const float x : grad) EXPECT_TRUE(std::isfinite(x));
                    }
                });
        }
}

struct Planted {
    const char* hook;
    const char* options;
    std::uint32_t flags;
    Home home;
    bool norm;
};

// One number of one rank is bad in the second step. Each rank looks at what it has afterwards.
void plant(int rank, ddp_group* group, const Planted& planted, int seed) {
    const std::vector<std::int64_t> sizes = {600, 1, 40'000, 257'000};
    const bool refused = (planted.flags & DDP_CONTEXT_REFUSE_NONFINITE) != 0;
    Net net(group, sizes, planted.home, with(planted.flags, 100'000));
    if (planted.norm) net.context.track_grad_norm();
    net.context.commit();
    net.context.use_hook(planted.hook, planted.options);
    const int owner = seed % 3, param = seed % 4;
    const auto element = static_cast<std::int64_t>(seed) * 7919 % sizes[static_cast<size_t>(param)];
    const float bad = seed % 2 == 0 ? kNan : kInfinity;
    const auto step = [&](bool spoilt) {
        net.announce(1, [&](int p, float* gradient) {
            if (spoilt && rank == owner && p == param) gradient[element] = bad;
        });
        net.context.finalize();
    };
    const auto publish = [&] {
        if (planted.flags & DDP_CONTEXT_SHARD) net.context.publish();
        for (int p = 0; p < 4; ++p) net.context.wait_value(p);
    };
    step(false);
    publish();
    const ddp::Error error = error_of([&] {
        net.borrowed.barrier();
        step(true);
    });
    EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_NONFINITE, owner, param, error.bucket(), 1}));
    EXPECT_THAT(error.what(), HasSubstr("element " + std::to_string(element) + " of " +
                                        std::to_string(sizes[static_cast<size_t>(param)]) + " is " +
                                        (std::isnan(bad) ? "nan" : "inf")));
    const auto is_own = [&](int p, std::int64_t i) {
        return planted.home == Home::kCopy && rank == owner && p == param && i == element;
    };
    // Buckets of a broken group hold anything.
    for (int p = 0; p < 4 && (planted.home == Home::kCopy || !refused); ++p) {
        std::int64_t found = 0;
        for (std::size_t i = 0; i < net.size(p); ++i)
            found += !std::isfinite(net.grad(p)[i]) && !is_own(p, static_cast<std::int64_t>(i));
        EXPECT_EQ(found, 0) << p;
    }
    if (refused) return;
    publish();
    step(false);
    if (planted.norm) {
        EXPECT_TRUE(std::isfinite(net.context.grad_norm(0)));
    }
}

TEST(Numbers, APlantedNumberIsNamedWhateverElseIsOn) {
    int seed = 0;
    for (const auto& [hook, options] : std::initializer_list<std::pair<const char*, const char*>>{
             {"allreduce", ""},
             {"fp16", ""},
             {"powersgd", "start=0,min_rate=0.1"},
             {"quantize_per_channel", "min_elements=0"},
             {"topk", "min_elements=0"}})
        for (const std::uint32_t flag : {DDP_CONTEXT_SKIP_NONFINITE, DDP_CONTEXT_REFUSE_NONFINITE})
            for (const bool shard : {false, true})
                for (const Home home : {Home::kCopy, Home::kView, Home::kInPlace})
                    for (const bool norm : {false, true}) {
                        const Planted planted{hook, options, flag | (shard ? DDP_CONTEXT_SHARD : 0),
                                              home, norm};
                        if (shard && home == Home::kInPlace) continue;
                        const testing::ScopedTrace trace(
                            "", 0,
                            std::string(hook) + (shard ? ", shards" : "") + (norm ? ", norm" : "") +
                                ", seed " + std::to_string(++seed));
                        on_ranks(
                            {3, seed % 4 == 0 ? "shm" : "threads"},
                            [&](int rank, ddp_group* group) { plant(rank, group, planted, seed); });
                    }
}

// 16 bits overflow where the gradients do not.
TEST(Numbers, AnOverflowOfACastIsSkipped) {
    on_ranks({2, "threads"}, [](int, ddp_group* group) {
        Net net(group, {20}, Home::kCopy, with(DDP_CONTEXT_SKIP_NONFINITE));
        net.context.use_hook("fp16");
        net.context.commit();
        const ddp::Error error = error_of([&] {
            net.announce(1e6f);
            net.context.finalize();
        });
        EXPECT_EQ(error.status(), DDP_ERROR_NONFINITE);
        EXPECT_EQ(error.rank(), -1);
        net.announce(100);
        net.context.finalize();
        EXPECT_TRUE(net.holds(0, 100));
    });
}

// DRIFT

ddp_context_options verifying(std::int64_t interval, std::uint32_t flags = 0) {
    auto options = with(flags);
    options.verify_interval = interval;
    return options;
}

// Trains, and flips a bit of a value on one rank after a step. Returns the error of the step that
// finds it.
ddp::Error drift(Model& model, int rank, int victim, int flip_after, int* steps) {
    return error_of([&] {
        for (*steps = 0; *steps < 20; ++*steps) {
            for (int p = model.count() - 1; p >= 0; --p) {
                model.fill(p, static_cast<float>(*steps + rank));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            for (int p = 0; p < model.count(); ++p)
                for (std::size_t i = 0; i < model.size(p); ++i)
                    model.data[static_cast<std::size_t>(p)][i] -= 0.1f * model.grad(p)[i];
            if (*steps != flip_after || rank != victim) continue;
            std::uint32_t bits = 0;
            float& value = model.data[1][3];
            std::memcpy(&bits, &value, sizeof bits);
            bits ^= 1;
            std::memcpy(&value, &bits, sizeof bits);
        }
    });
}

TEST_P(NumbersTest, AFlippedBitIsFoundAtTheNextComparison) {
    for (const int victim : {0, 1, 2})
        run(3, [&](int rank, ddp_group* group) {
            Model model(group, {5, 6, 7}, home() == Home::kView, verifying(4));
            model.context.commit();
            int steps = 0;
            const ddp::Error error = drift(model, rank, victim, 5, &steps);
            EXPECT_EQ(steps, 8);
            EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_MISMATCH, victim, 1, -1, 8}));
            const char* sides[] = {"rank 0 has others than ranks 1, 2",
                                   "rank 1 has others than ranks 0, 2",
                                   "rank 2 has others than ranks 0, 1"};
            EXPECT_THAT(error.what(), HasSubstr(sides[victim]));
        });
}

TEST_P(NumbersTest, OfTwoRanksNobodyKnowsWhichIsRight) {
    run(2, [&](int rank, ddp_group* group) {
        Model model(group, {5, 6}, home() == Home::kView, verifying(1));
        model.context.commit();
        int steps = 0;
        const ddp::Error error = drift(model, rank, 0, 2, &steps);
        EXPECT_EQ(steps, 3);
        EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_MISMATCH, -1, 1, -1, 3}));
        EXPECT_THAT(error.what(), HasSubstr("nobody can tell"));
    });
}

TEST(Numbers, BuffersAreComparedOnRequest) {
    for (const bool asked : {false, true})
        on_ranks({3, "threads"}, [&](int rank, ddp_group* group) {
            Model model(group, {5}, true, verifying(2, asked ? DDP_CONTEXT_VERIFY_BUFFERS : 0));
            float buffer[2] = {1, 2};
            model.context.add_buffer<float>("steps", {2}, buffer);
            model.context.commit();
            const auto step = [&] {
                model.fill(0, 1);
                model.context.grad_ready(0);
                model.context.finalize();
            };
            step();
            if (rank == 2) buffer[1] = 3;
            step();
            if (!asked) return step();
            const ddp::Error error = error_of(step);
            EXPECT_EQ(facts_of(error), (Facts{DDP_ERROR_MISMATCH, 2, -1, -1, 2}));
            EXPECT_THAT(error.what(), HasSubstr("the buffer 'steps'"));
        });
}

TEST(Numbers, RanksThatMayDifferAreNotCompared) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        Model model(group, {5, 6}, true, verifying(1));
        model.context.commit();
        model.context.use_hook("noop");
        model.data[0][0] = static_cast<float>(rank);
        model.context.grad_ready(0);
        model.context.grad_ready(1);
        model.context.finalize();
    });
}

TEST(Numbers, EveryRankHasToAskForIt) {
    for (const auto& options :
         {verifying(25), with(DDP_CONTEXT_SKIP_NONFINITE), with(DDP_CONTEXT_REFUSE_NONFINITE)})
        on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
            Model model(group, {20}, true, rank == 0 ? options : with(0));
            EXPECT_EQ(facts_of([&] { model.context.commit(); }), (Facts{DDP_ERROR_MISMATCH, 1}));
        });
}

class NumbersOptions : public LoneContext {};

TEST_F(NumbersOptions, AreReadStrictly) {
    ddp_context* none = nullptr;
    const std::pair<ddp_context_options, const char*> cases[] = {
        {verifying(-1), "verify_interval is -1"},
        {with(DDP_CONTEXT_VERIFY_BUFFERS), "needs options->verify_interval"},
        {with(DDP_CONTEXT_SKIP_NONFINITE | DDP_CONTEXT_REFUSE_NONFINITE), "exclude each other"}};
    for (const auto& [options, text] : cases)
        expect_refused({{text,
                         DDP_ERROR_INVALID_ARGUMENT,
                         {text},
                         calling(ddp_context_create, group, &options, &none)}});
    // A program with the header of before.
    auto old = verifying(-1);
    old.struct_size = offsetof(ddp_context_options, verify_interval);
    ASSERT_EQ(ddp_context_create(group, &old, &none, nullptr), DDP_OK);
    ddp_context_free(none);
}

}  // namespace numbers_test
