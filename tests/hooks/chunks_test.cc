// The important chunks of a bucket: which they are, what becomes of the others, and momentum.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>

#include "hooks/any_model.h"
#include "hooks/state_file.h"
#include "support/model.h"
#include "support/ranks.h"

namespace chunks_test {

ddp_context_options one_bucket(bool mean = true) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = 1u << 20;
    options.flags |= DDP_CONTEXT_NO_REBUILD;
    options.reduction = mean ? DDP_REDUCTION_MEAN : DDP_REDUCTION_SUM;
    return options;
}

struct Rules {
    std::size_t chunk;
    double ratio, momentum;
    int warmup;

    std::string text() const {
        return "chunk=" + std::to_string(chunk) + ",ratio=" + std::to_string(ratio) +
               ",momentum=" + std::to_string(momentum) + ",warmup=" + std::to_string(warmup);
    }
};

// All ranks with one bucket, in f64, as docs/hooks.md says it: without messages, types and layouts.
class Reference {
public:
    Reference(const Rules& rules, int world, bool mean, const std::vector<AnyParam>& params)
        : rules_(rules), world_(world), mean_(mean) {
        for (std::size_t p = params.size(); p-- > 0;)  // a bucket begins with the last parameter
            for (std::size_t first = 0, n = static_cast<std::size_t>(params[p].count); first < n;
                 first += rules.chunk)
                chunks_.push_back({p, first, std::min(rules.chunk, n - first)});
        for (const AnyParam& p : params) {
            const Numbers zeros(static_cast<std::size_t>(p.count));
            errors_.emplace_back(static_cast<std::size_t>(world), zeros);
            velocities_.emplace_back(static_cast<std::size_t>(world), zeros);
            elements_ += zeros.size();
        }
    }

    // By rank and parameter. Returns the result by parameter.
    std::vector<Numbers> step(const std::vector<std::vector<Numbers>>& gradients) {
        const double part = std::min(1.0, static_cast<double>(steps_++) / rules_.warmup);
        const double share =
            rules_.warmup == 0 ? rules_.ratio : 1 / (1 + (1 / rules_.ratio - 1) * part);
        std::vector<double> importance;
        for (const Chunk& c : chunks_) {
            double norm = 0;
            for (std::size_t r = 0; r < static_cast<std::size_t>(world_); ++r)
                for (std::size_t k = c.first; k < c.first + c.count; ++k)
                    norm += std::fabs(errors_[c.param][r][k] +
                                      rules_.momentum * velocities_[c.param][r][k] +
                                      gradients[r][c.param][k]);
            importance.push_back(norm / static_cast<double>(c.count));
        }
        std::vector<std::size_t> order(chunks_.size());
        std::iota(order.begin(), order.end(), 0u);
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return importance[a] > importance[b];
        });
        std::vector<bool> sent(chunks_.size());
        std::size_t taken = 0;
        for (std::size_t i = 0;
             static_cast<double>(taken) < share * static_cast<double>(elements_) * (1 - 1e-12);
             ++i) {
            sent[order[i]] = true;
            taken += chunks_[order[i]].count;
        }
        sent_ = taken;
        std::vector<Numbers> result;
        for (const auto& kept : errors_) result.emplace_back(kept[0].size());
        for (std::size_t i = 0; i < chunks_.size(); ++i) {
            const Chunk& c = chunks_[i];
            for (std::size_t r = 0; r < static_cast<std::size_t>(world_); ++r) {
                double* const error = errors_[c.param][r].data() + c.first;
                double* const velocity = velocities_[c.param][r].data() + c.first;
                const bool waited =
                    std::any_of(error, error + c.count, [](double x) { return x != 0; });
                for (std::size_t k = 0; k < c.count; ++k) {
                    velocity[k] =
                        rules_.momentum * velocity[k] + gradients[r][c.param][c.first + k];
                    error[k] += velocity[k];
                    if (!sent[i]) continue;
                    result[c.param][c.first + k] += error[k] / (mean_ ? world_ : 1);
                    error[k] = 0;
                    if (waited) velocity[k] = 0;
                }
            }
        }
        return result;
    }
    const Numbers& error(std::size_t param, std::size_t rank) { return errors_[param][rank]; }
    std::size_t chunk_count() const { return chunks_.size(); }
    std::size_t sent() const { return sent_; }

private:
    struct Chunk {
        std::size_t param, first, count;
    };

    const Rules rules_;
    const int world_;
    const bool mean_;
    std::vector<Chunk> chunks_;
    std::vector<std::vector<Numbers>> errors_, velocities_;  // by parameter and rank
    std::size_t elements_ = 0, sent_ = 0;
    int steps_ = 0;
};

TEST(Chunks, EqualTheReference) {
    int trial = 0;
    for (const ddp_dtype dtype : {DDP_F32, DDP_F64, DDP_BF16})
        for (int world = 1; world <= 5; ++world)
            for (const Rules& rules :
                 {Rules{16, 0.2, 0, 0}, Rules{16, 0.2, 0.9, 6}, Rules{7, 0.5, 0.5, 3},
                  Rules{1000, 0.1, 0.9, 0}, Rules{1, 0.05, 0, 4}}) {
                const bool mean = ++trial % 3 != 0, view = trial % 2 == 0;
                const std::vector<AnyParam> params{
                    {dtype, 300}, {dtype, 1}, {dtype, 0}, {dtype, 129}, {dtype, 16}};
                const double rounding = dtype == DDP_F64 ? 1e-12 : dtype == DDP_F32 ? 2e-5 : 2e-2;
                on_ranks({world}, [&](int rank, ddp_group* group) {
                    AnyModel m(group, params, view, one_bucket(mean));
                    m.context.use_hook("chunks", rules.text());
                    m.context.commit();
                    Reference reference(rules, world, mean, params);
                    std::uint64_t sent = 0;
                    for (int s = 0; s < 12; ++s) {
                        std::vector<std::vector<Numbers>> gradients;
                        for (int r = 0; r < world; ++r) {
                            gradients.emplace_back();
                            for (int i = 0; i < m.count(); ++i)
                                gradients.back().push_back(some_numbers(m.param(i), r, s, i));
                        }
                        const auto expected = reference.step(gradients);
                        m.step([&](int i) {
                            return gradients[static_cast<std::size_t>(rank)]
                                            [static_cast<std::size_t>(i)];
                        });
                        sent += 8 * reference.chunk_count() +
                                (dtype == DDP_F64 ? 8 : 4) * reference.sent();
                        EXPECT_EQ(m.sent_bytes(), sent) << "step " << s;
                        for (int i = 0; i < m.count(); ++i) {
                            const Numbers result = m.numbers(i);
                            for (std::size_t k = 0; k < result.size(); ++k)
                                ASSERT_NEAR(result[k], expected[static_cast<std::size_t>(i)][k],
                                            rounding * (1 + std::fabs(result[k])))
                                    << rules.text() << " world " << world << " step " << s
                                    << " parameter " << i << " element " << k;
                        }
                    }
                    const auto file = m.context.save_hook_state();
                    const StateFile kept = array_of(file, "error:p3");
                    const ddp_dtype real = dtype == DDP_F64 ? DDP_F64 : DDP_F32;
                    ASSERT_EQ(kept.size(), 129 * libddp::dtype_size(real));
                    const Numbers error = to_numbers(kept.data(), {real, 129}),
                                  wanted = reference.error(3, static_cast<std::size_t>(rank));
                    for (std::size_t k = 0; k < error.size(); ++k)
                        EXPECT_NEAR(error[k], wanted[k],
                                    (dtype == DDP_F64 ? 1e-12 : 2e-5) * (1 + std::fabs(wanted[k])));
                    EXPECT_EQ(array_of(file, "velocity:p3").size(),
                              rules.momentum > 0 ? kept.size() : 0u);
                });
            }
}

// Each rank's own largest chunk is another one: ranks send that with the largest sum.
TEST(Chunks, AreChosenByAllRanks) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        AnyModel m(group, {{DDP_F32, 6}}, true);
        m.context.use_hook("chunks", "chunk=2,ratio=0.3,warmup=0");
        m.context.commit();
        const Numbers values[] = {{5, 5, 4, -4, 0, 0}, {0, 0, 4, 4, -5, 5}};
        m.step([&](int) { return values[rank]; });
        EXPECT_EQ(m.numbers(0), (Numbers{0, 0, 4, 0, 0, 0}));
        m.step([&](int) { return Numbers(6); });
        EXPECT_EQ(m.numbers(0), (Numbers{2.5, 2.5, 0, 0, 0, 0})) << "of equal ones the first";
        m.step([&](int) { return Numbers(6); });
        EXPECT_EQ(m.numbers(0), (Numbers{0, 0, 0, 0, -2.5, 2.5}));
        EXPECT_EQ(m.kept(), Numbers(6));
    });
}

TEST(Chunks, SendEverythingAtFirst) {
    const std::vector<AnyParam> params{{DDP_F32, 3000}, {DDP_F64, 1025}, {DDP_F32, 1},
                                       {DDP_I32, 9},    {DDP_C64, 12},   {DDP_F32, 0}};
    for (const char* text : {"ratio=1,warmup=0", "ratio=0.001,warmup=1000000000"})
        for (const bool mean : {true, false})
            for (int world = 1; world <= 4; ++world)
                on_ranks({world}, [&](int rank, ddp_group* group) {
                    AnyModel plain(group, params, mean, one_bucket(mean)),
                        hooked(group, params, mean, one_bucket(mean));
                    hooked.context.use_hook("chunks", text);
                    plain.context.commit();
                    hooked.context.commit();
                    for (AnyModel* m : {&plain, &hooked})
                        m->step([&](int i) { return some_numbers(m->param(i), rank, 0, i); });
                    EXPECT_TRUE(plain.bytes() == hooked.bytes()) << "world " << world;
                });
}

// With all chunks in each step the momentum is that of an optimizer.
TEST(Chunks, MomentumIsThatOfAnOptimizer) {
    on_ranks({3}, [](int rank, ddp_group* group) {
        const std::vector<AnyParam> params{{DDP_F64, 700}};
        AnyModel m(group, params, true);
        m.context.use_hook("chunks", "chunk=64,ratio=1,momentum=0.9,warmup=0");
        m.context.commit();
        Numbers velocity(700);
        for (int s = 0; s < 8; ++s) {
            m.step([&](int i) { return some_numbers(m.param(i), rank, s); });
            const Numbers result = m.numbers(0);
            for (std::size_t k = 0; k < 700; ++k) {
                double mean = 0;
                for (int r = 0; r < 3; ++r) mean += some_numbers(params[0], r, s)[k] / 3;
                velocity[k] = 0.9 * velocity[k] + mean;
                ASSERT_NEAR(result[k], velocity[k], 1e-12) << "step " << s;
            }
        }
    });
}

TEST(Chunks, LoseNothing) {
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const bool varying : {true, false})
            expect_nothing_is_lost(dtype, 3, varying, 30, "chunks", "chunk=16,ratio=0.1,warmup=10");
}

// No chunk waits for ever: what is kept stays below a bound.
TEST(Chunks, KeepNoMoreAfterMoreSteps) {
    for (const bool varying : {true, false})
        for (const int steps : {30, 300})
            EXPECT_LT(expect_nothing_is_lost(DDP_F64, 2, varying, steps, "chunks",
                                             "chunk=16,ratio=0.1,warmup=0"),
                      100);
}

// With DDP_CONTEXT_ACCUMULATE a rank's gradient counts although this step does not use it.
TEST(Chunks, LoseNoUnusedGradientThatCounts) {
    const AnyParam large{DDP_F64, 64}, small{DDP_F64, 8};
    Numbers kept[2], applied(64);
    on_ranks({2}, [&](int rank, ddp_group* group) {
        auto options = one_bucket();
        options.flags |= DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_ACCUMULATE;
        AnyModel m(group, {large, small}, false, options);
        m.context.use_hook("chunks", "chunk=8,ratio=0.2,warmup=0");
        m.context.commit();
        for (int s = 0; s < 6; ++s) {
            m.context.step_begin();
            for (int i = 1; i >= 0; --i) {
                const Bytes values = to_bytes(some_numbers(m.param(i), rank, s, i), DDP_F64);
                std::memcpy(m.grad(i), values.data(), values.size());
                if (i == 1 || rank == 0) m.context.grad_ready(i);
            }
            m.context.finalize();
            if (rank != 0) continue;
            const Numbers result = m.numbers(0);
            for (std::size_t k = 0; k < 64; ++k) applied[k] += result[k];
        }
        const StateFile error = array_of(m.context.save_hook_state(), "error:p0");
        ASSERT_EQ(error.size(), 512u);
        kept[rank] = to_numbers(error.data(), large);
    });
    for (std::size_t k = 0; k < 64; ++k) {
        double wanted = 0;
        for (int s = 0; s < 6; ++s)
            for (int r = 0; r < 2; ++r) wanted += some_numbers(large, r, s)[k] / 2;
        EXPECT_NEAR(applied[k] + (kept[0][k] + kept[1][k]) / 2, wanted, 1e-12) << "element " << k;
    }
}

const std::vector<AnyParam> kParams{{DDP_F32, 5000}, {DDP_F16, 300}, {DDP_I64, 40},
                                    {DDP_F64, 2500}, {DDP_F32, 33},  {DDP_BF16, 777},
                                    {DDP_F32, 0},    {DDP_C128, 50}, {DDP_F32, 1}};

TEST(Chunks, RanksAgreeOnEveryBackend) {
    for (const char* backend : {"threads", "threads-plain", "shm", "tcp", "hierarchical"})
        for (const char* name : {"chunks", "bf16(chunks)"}) {
            std::vector<Bytes> results(3);
            on_ranks({3, backend}, [&](int rank, ddp_group* group) {
                auto options = ddp::Context::defaults();
                options.bucket_cap_bytes = options.first_bucket_cap_bytes = 9000;
                AnyModel m(group, kParams, true, options);
                m.context.use_hook(name, "chunk=32,ratio=0.2,momentum=0.5,warmup=3");
                m.context.commit();
                for (int s = 0; s < 6; ++s) {
                    m.step([&](int i) { return some_numbers(m.param(i), rank, s, i); });
                    const Bytes all = m.bytes();
                    auto& mine = results[static_cast<std::size_t>(rank)];
                    mine.insert(mine.end(), all.begin(), all.end());
                }
            });
            EXPECT_TRUE(results[1] == results[0] && results[2] == results[0]) << backend;
        }
}

// Each owner gets what every rank gets without shards.
TEST(Chunks, OwnersGetTheirPart) {
    for (const int world : {1, 2, 3, 5})
        on_ranks({world}, [&](int rank, ddp_group* group) {
            auto options = one_bucket();
            Model whole(group, {300, 129, 16}, false, options);
            options.flags |= DDP_CONTEXT_SHARD;
            Model shards(group, {300, 129, 16}, false, options);
            for (Model* m : {&whole, &shards}) {
                m->context.use_hook("chunks", "chunk=16,ratio=0.2,momentum=0.9,warmup=2");
                m->context.commit();
                ASSERT_EQ(ddp_context_bucket_count(m->context.get()), 1);
            }
            for (int s = 0; s < 5; ++s) {
                for (int p = shards.count(); p-- > 0;) shards.context.wait_value(p);
                for (Model* m : {&whole, &shards}) {
                    for (int p = m->count(); p-- > 0;) {
                        const AnyParam param{DDP_F32, static_cast<std::int64_t>(m->size(p))};
                        copy_numbers<float>(some_numbers(param, rank, s, p), m->grad(p));
                        m->context.grad_ready(p);
                    }
                    m->context.finalize();
                }
                std::size_t seen = 0;
                for (const ddp_piece& piece : shards.context.pieces())
                    for (std::int64_t i = 0; i < piece.count; ++i, ++seen)
                        ASSERT_EQ(static_cast<const float*>(piece.gradient)[i],
                                  whole.grad(piece.param)[piece.first + i])
                            << "step " << s << " parameter " << piece.param;
                EXPECT_GT(seen, 0u);
                shards.context.publish();
            }
        });
}

// One element on one rank spoils the whole parameter on all, and what is kept for it stays.
TEST(Chunks, NotFiniteIsNaNEverywhereAndChangesNoMemory) {
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()})
        on_ranks({3}, [value](int rank, ddp_group* group) {
            AnyModel m(group, {{DDP_F32, 200}, {DDP_F32, 90}}, true, one_bucket());
            m.context.use_hook("chunks", "chunk=16,ratio=0.1,momentum=0.5,warmup=0");
            m.context.commit();
            const auto step = [&](int s, double planted) {
                m.step([&](int i) {
                    Numbers x = some_numbers(m.param(i), rank, s, i);
                    if (i == 0 && rank == 1 && planted != 0) x[77] = planted;
                    return x;
                });
            };
            for (int s = 0; s < 3; ++s) step(s, 0);
            const auto before = m.context.save_hook_state();
            step(3, value);
            const auto after = m.context.save_hook_state();
            for (const double x : m.numbers(0)) EXPECT_TRUE(std::isnan(x));
            for (const double x : m.numbers(1)) EXPECT_TRUE(std::isfinite(x));
            for (const char* array : {"error:p0", "velocity:p0"}) {
                EXPECT_EQ(array_of(after, array), array_of(before, array)) << array;
                EXPECT_NE(array_of(after, array), StateFile(800)) << array;
            }
            EXPECT_NE(array_of(after, "error:p1"), array_of(before, "error:p1"));
            step(4, 0);
            for (const double x : m.numbers(0)) EXPECT_TRUE(std::isfinite(x));
        });
}

TEST(Chunks, AStateResumes) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        const auto make = [&](bool view) {
            auto m = std::make_unique<AnyModel>(group, kParams, view, one_bucket());
            m->context.use_hook("chunks", "chunk=32,ratio=0.1,momentum=0.9,warmup=8");
            m->context.commit();
            return m;
        };
        const auto step = [rank](AnyModel& m, int s) {
            m.step([&](int i) { return some_numbers(m.param(i), rank, s, i); });
        };
        const auto through = make(true), resumed = make(false), shared = make(true);
        for (int s = 0; s < 4; ++s) step(*through, s);
        const auto file = through->context.save_hook_state();
        step(*resumed, 9);
        resumed->context.load_hook_state(file);
        shared->context.load_hook_state(file, DDP_HOOK_STATE_SHARED_ONLY);
        EXPECT_EQ(array_of(shared->context.save_hook_state(), "error:p0"), StateFile());
        const std::uint64_t sent = through->sent_bytes();
        for (int s = 4; s < 10; ++s) {
            step(*through, s);
            step(*resumed, s);
            step(*shared, s);
            EXPECT_TRUE(through->bytes() == resumed->bytes()) << "step " << s;
        }
        EXPECT_EQ(through->context.save_hook_state(), resumed->context.save_hook_state());
        EXPECT_NEAR(static_cast<double>(shared->sent_bytes()),
                    static_cast<double>(through->sent_bytes() - sent), 6 * 4 * 32 * 8)
            << "it goes on with the warm-up";
    });
}

}  // namespace chunks_test
