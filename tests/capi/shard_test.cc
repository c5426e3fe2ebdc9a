// DDP_CONTEXT_SHARD: each rank updates what it owns, and the values are those of one program that
// updates all.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace shard_test {

using testing::HasSubstr;

// AdamW (Loshchilov and Hutter 2019), element by element.
struct AdamW {
    std::vector<float> m, v;

    explicit AdamW(std::size_t count) : m(count), v(count) {}
    void update(float* value, const float* gradient, int step) {
        constexpr float kRate = 0.01f, kBeta1 = 0.9f, kBeta2 = 0.999f, kDecay = 0.1f;
        const float c1 = 1 - std::pow(kBeta1, static_cast<float>(step));
        const float c2 = 1 - std::pow(kBeta2, static_cast<float>(step));
        for (std::size_t i = 0; i < m.size(); ++i) {
            m[i] = kBeta1 * m[i] + (1 - kBeta1) * gradient[i];
            v[i] = kBeta2 * v[i] + (1 - kBeta2) * gradient[i] * gradient[i];
            value[i] -= kRate * kDecay * value[i];
            value[i] -= kRate * (m[i] / c1) / (std::sqrt(v[i] / c2) + 1e-8f);
        }
    }
};

template <class Call>
std::string message_of(Call call) {
    return error_of(call).what();
}

const std::vector<std::int64_t> kSizes = {1000, 3, 257, 40'000, 0, 1, 5000, 64, 9001, 17};

struct Training {
    bool shard = false, view = false;
    std::uint64_t cap = 1 << 20;
    std::vector<ddp_owner> owners{};  // of the parameters in turn; none: their elements
    bool accumulates = false;         // every second step is not synced
    std::string hook{};
    unsigned groups = 1;
    bool in_step = false;  // with ddp_set_update
    std::uint32_t flags = 0;
};

// Values of this rank after some steps whose gradients depend on the values.
std::vector<float> train(int rank, ddp_group* group, const Training& training,
                         double* owned = nullptr) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = training.cap;
    options.flags = training.flags | (training.shard ? DDP_CONTEXT_SHARD : DDP_CONTEXT_NO_REBUILD);
    if (training.flags & DDP_CONTEXT_CHECK) options.check_interval = options.verify_interval = 1;
    Model model(group, kSizes, training.view, options);
    for (int p = 0; p < model.count(); ++p)
        for (std::size_t k = 0; k < model.size(p); ++k)
            model.data[static_cast<std::size_t>(p)][k] = 0.01f * static_cast<float>(k % 97);
    for (int p = 0; p < model.count() && training.shard && !training.owners.empty(); ++p)
        model.context.set_owner(
            p, training.owners[static_cast<std::size_t>(p) % training.owners.size()]);
    model.context.commit();
    if (!training.hook.empty()) model.context.use_hook(training.hook);

    std::vector<ddp_piece> pieces;
    if (training.shard) {
        pieces = model.context.pieces();
    } else {
        for (int p = 0; p < model.count(); ++p)
            if (model.size(p) > 0)
                pieces.push_back({sizeof(ddp_piece), p, 1, 0, kSizes[static_cast<std::size_t>(p)],
                                  model.data[static_cast<std::size_t>(p)].data(), model.grad(p)});
    }
    std::vector<AdamW> optimizers;
    for (const ddp_piece& piece : pieces) {
        optimizers.emplace_back(static_cast<std::size_t>(piece.count));
        if (owned && !piece.replicated) *owned += static_cast<double>(piece.count);
    }

    int step = 0;
    std::map<ddp_param, AdamW*> optimizer_of;
    for (std::size_t i = 0; i < pieces.size(); ++i) optimizer_of[pieces[i].param] = &optimizers[i];
    if (training.in_step)
        model.context.set_update([&](const ddp_piece* const* some, std::size_t count) {
            for (std::size_t i = 0; i < count; ++i)
                optimizer_of.at(some[i]->param)
                    ->update(static_cast<float*>(some[i]->value),
                             static_cast<const float*>(some[i]->gradient), step + 1);
        });
    for (; step < 6; ++step) {
        model.context.step_begin();
        const bool sync = !training.accumulates || step % 2 == 1;
        model.context.set_sync(sync);
        const bool first = !training.accumulates || step % 2 == 0;
        for (int p = model.count(); p-- > 0;) {
            if (training.shard) model.context.wait_value(p);
            for (std::size_t k = 0; k < model.size(p); ++k) {
                float& gradient = model.grad(p)[k];
                const float value = model.data[static_cast<std::size_t>(p)][k] *
                                        std::ldexp(1.37f, 3 * rank - step) +
                                    std::sin(static_cast<float>(k) * static_cast<float>(rank + 1));
                gradient = first ? value : gradient + value;
            }
            model.context.grad_ready(p);
        }
        model.context.finalize();
        if (!sync || training.in_step) continue;
        for (std::size_t i = 0; i < pieces.size(); ++i)
            optimizers[i].update(static_cast<float*>(pieces[i].value),
                                 static_cast<const float*>(pieces[i].gradient), step + 1);
        if (training.shard) model.context.publish();
    }
    std::vector<float> all;
    for (int p = 0; p < model.count(); ++p) {
        if (training.shard) model.context.wait_value(p);
        const auto& values = model.data[static_cast<std::size_t>(p)];
        all.insert(all.end(), values.begin(), values.end());
    }
    return all;
}

using Values = std::vector<std::vector<float>>;  // of each rank

Values train(const RankOptions& options, const Training& training,
             std::vector<double>* owned = nullptr) {
    Values result(static_cast<std::size_t>(options.world));
    if (owned) owned->assign(result.size(), 0);
    RankOptions grouped = options;
    grouped.round_robin = training.groups > 1 ? training.groups : 0;
    on_ranks(grouped, [&](int rank, ddp_group* group) {
        const auto r = static_cast<std::size_t>(rank);
        result[r] = train(rank, group, training, owned ? &(*owned)[r] : nullptr);
    });
    return result;
}

void expect_same_bits(const Values& a, const Values& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t r = 0; r < a.size(); ++r) {
        ASSERT_EQ(a[r].size(), b[r].size());
        for (std::size_t i = 0; i < a[r].size(); ++i)
            ASSERT_EQ(std::memcmp(&a[r][i], &b[r][i], sizeof(float)), 0)
                << "rank " << r << ", element " << i << ": " << a[r][i] << ", " << b[r][i];
    }
}

const std::vector<ddp_owner> kMixed = {DDP_OWNER_WHOLE, DDP_OWNER_ELEMENTS, DDP_OWNER_REPLICATED};

struct Kind {
    const char* backend;
    const char* options;
};

class Shards : public testing::TestWithParam<std::tuple<int, Kind>> {
protected:
    RankOptions options() const {
        RankOptions result(std::get<0>(GetParam()), std::get<1>(GetParam()).backend);
        result.backend_options = std::get<1>(GetParam()).options;
        result.flags = DDP_GROUP_DETERMINISTIC;
        return result;
    }
};

TEST_P(Shards, TrainToTheBitsOfOneProgramThatUpdatesAll) {
    const Values want = train(options(), {});
    expect_same_bits(want, Values(want.size(), want[0]));
    for (const Training& training :
         {Training{true}, Training{true, true}, Training{true, false, 4096},
          Training{true, true, 64}, Training{true, true, 4096, kMixed},
          Training{true, false, 1 << 20, kMixed}, Training{true, true, 1 << 20, {DDP_OWNER_WHOLE}},
          Training{true, false, 4096, {DDP_OWNER_REPLICATED}},
          Training{true, true, 30'000, kMixed, false, "", 3}})
        expect_same_bits(train(options(), training), want);
}

TEST_P(Shards, UpdatesInTheStep) {
    for (const char* hook : {"", "fp16"}) {
        const Values want = train(options(), {false, false, 1 << 20, {}, false, hook});
        for (const unsigned groups : {1u, 3u})
            for (const bool view : {false, true})
                expect_same_bits(
                    train(options(), {true, view, 4096, kMixed, false, hook, groups, true}), want);
    }
    const Values want = train(options(), {false, false, 1 << 20, {}, true});
    expect_same_bits(train(options(), {true, true, 4096, kMixed, true, "", 1, true}), want);
}

TEST_P(Shards, UnsyncedStepsAddUp) {
    const Values want = train(options(), {false, false, 1 << 20, {}, true});
    for (const bool view : {false, true})
        expect_same_bits(train(options(), {true, view, 4096, kMixed, true}), want);
}

TEST_P(Shards, HooksThatSendFewerBytes) {
    const Values want = train(options(), {false, false, 1 << 20, {}, false, "fp16"});
    for (const bool view : {false, true})
        expect_same_bits(train(options(), {true, view, 4096, kMixed, false, "fp16"}), want);
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, Kind>>& instance) {
    return std::get<1>(instance.param).backend + std::to_string(std::get<0>(instance.param));
}

TEST_P(Shards, ChecksFindNothing) {
    const Values want = train(options(), {});
    const std::uint32_t nonfinite = DDP_CONTEXT_REFUSE_NONFINITE;
    // alone, a gradient is its own mean, which a check doubts
    const std::uint32_t all = nonfinite | (options().world > 1 ? DDP_CONTEXT_CHECK : 0);
    for (const bool view : {false, true}) {
        expect_same_bits(train(options(), {true, view, 4096, kMixed, false, "", 1, false, all}),
                         want);
        expect_same_bits(
            train(options(), {true, view, 4096, kMixed, false, "", 1, true, nonfinite}), want);
    }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Shards,
                         testing::Combine(testing::Values(1, 2, 3, 5),
                                          testing::Values(Kind{"threads", ""})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Backends, Shards,
                         testing::Combine(testing::Values(3),
                                          testing::Values(Kind{"tcp", ""}, Kind{"shm", ""},
                                                          Kind{"gloo", ""})),
                         name_of);

TEST(Shard, EachRankOwnsItsShare) {
    const double all =
        static_cast<double>(std::accumulate(kSizes.begin(), kSizes.end(), std::int64_t{0}));
    for (int world = 1; world <= 5; ++world)
        for (const std::uint64_t cap : {64, 4096, 1 << 20}) {
            std::vector<double> owned;
            train(world, {true, true, cap}, &owned);
            EXPECT_EQ(std::accumulate(owned.begin(), owned.end(), 0.0), all);
            for (const double own : owned) EXPECT_LE(own, all / world + 0.01 * all);
        }
}

// A context whose ranks own shards.
struct Sharded : Model {
    explicit Sharded(ddp_group* group, std::uint32_t flags = 0, bool view = true)
        : Model(group, {1000, 3, 500}, view, options(flags)) {}
    static ddp_context_options options(std::uint32_t flags) {
        auto result = ddp::Context::defaults();
        result.flags = DDP_CONTEXT_SHARD | flags;
        result.bucket_cap_bytes = result.first_bucket_cap_bytes = 2000;
        return result;
    }
    void wait_for_values() {
        for (int p = 0; p < count(); ++p) context.wait_value(p);
    }
    void step(float value) {
        wait_for_values();
        for (int p = count(); p-- > 0;) {
            fill(p, value);
            context.grad_ready(p);
        }
        context.finalize();
    }
};

TEST(Shard, ViewsAreZeroWhenTheirValuesHaveCome) {
    on_ranks(3, [](int, ddp_group* group) {
        Sharded model(group);
        model.context.commit();
        model.step(1);
        for (const ddp_piece& piece : model.context.pieces())
            EXPECT_EQ(static_cast<float*>(piece.gradient)[0], 1 + static_cast<float>(piece.first));
        model.context.publish();
        for (int p = 0; p < model.count(); ++p) {
            model.context.wait_value(p);
            EXPECT_TRUE(model.holds(p, 0, 0));
        }
    });
}

// Only some ranks have changed anything, and one nothing at all.
TEST(Shard, ValuesAreThoseOfTheirOwners) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Sharded model(group, 0, false);
        model.context.commit();
        for (const ddp_piece& piece : model.context.pieces())
            for (std::int64_t i = 0; i < piece.count && rank != 1; ++i)
                static_cast<float*>(piece.value)[i] = static_cast<float>(10 + rank);
        model.context.publish();
        float sum = 0;
        for (int p = 0; p < model.count(); ++p) {
            model.context.wait_value(p);
            for (const float value : model.data[static_cast<std::size_t>(p)]) {
                EXPECT_TRUE(value == 10 || value == 0 || value == 12) << value;
                sum += value;
            }
        }
        EXPECT_NEAR(sum, 1503 * 22.0 / 3, 500);
    });
}

// A rank that has no more use for the values leaves when the others have them.
TEST(Shard, AContextThatIsFreedLetsItsValuesArrive) {
    on_ranks({2, "tcp"}, [](int rank, ddp_group* group) {
        Sharded model(group, 0, false);
        model.context.commit();
        for (const ddp_piece& piece : model.context.pieces())
            std::fill_n(static_cast<float*>(piece.value), piece.count, 7.0f);
        model.context.publish();
        if (rank == 0) return;
        for (int p = 0; p < model.count(); ++p) {
            model.context.wait_value(p);
            EXPECT_THAT(model.data[static_cast<std::size_t>(p)], testing::Each(7.0f));
        }
    });
}

TEST(Shard, AStepThatWasNotPublishedIsNamed) {
    on_ranks(2, [](int, ddp_group* group) {
        Sharded model(group);
        model.context.commit();
        model.step(1);
        EXPECT_THAT(message_of([&] { model.step(2); }),
                    HasSubstr("not published it, since step 0; call ddp_publish after the "
                              "optimizer on every rank"));
        model.context.publish();
        model.step(3);
        model.context.publish();
    });
}

// The forward pass has used the old value, and the view would become zero.
TEST(Shard, AGradientOfAValueThatNobodyWaitedForIsNamed) {
    on_ranks(2, [](int, ddp_group* group) {
        Sharded model(group);
        model.context.commit();
        model.step(1);
        model.context.publish();
        EXPECT_THAT(message_of([&] { model.context.grad_ready(1); }),
                    HasSubstr("'p1' has a new value since step 0, and nobody has waited for it"));
        model.step(2);
        model.context.publish();
    });
}

TEST(Shard, ARankThatDoesNotPublishIsNamed) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Sharded model(group);
        model.context.commit();
        model.step(1);
        BorrowedGroup borrowed(group);
        EXPECT_THAT(message_of([&] {
                        if (rank == 1) return borrowed.barrier();
                        model.context.publish();
                        model.context.wait_value(0);
                    }),
                    HasSubstr("ddp_publish"));
    });
}

TEST(Shard, PublishingInTheMiddleOfUnsyncedStepsIsRefused) {
    on_ranks(2, [](int, ddp_group* group) {
        Sharded model(group);
        model.context.commit();
        model.context.set_sync(false);
        model.step(1);
        EXPECT_THAT(message_of([&] { model.context.publish(); }),
                    HasSubstr("gradients of unsynced steps wait"));
        model.context.set_sync(true);
        for (int p = 0; p < model.count(); ++p) model.context.grad_ready(p);
        model.context.finalize();
        for (const ddp_piece& piece : model.context.pieces())
            EXPECT_EQ(static_cast<float*>(piece.gradient)[0], 1 + static_cast<float>(piece.first));
        model.context.publish();
    });
}

// An owner learns that nobody used its piece, and gets zeros.
TEST(Shard, UnusedParameters) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Sharded model(group, DDP_CONTEXT_FIND_UNUSED, false);
        model.context.commit();
        for (int step = 0; step < 3; ++step) {
            model.wait_for_values();
            for (int p = 0; p < model.count(); ++p) {
                model.fill(p, 3);
                if (p == 0 || (p == 2 && rank == 1)) model.context.grad_ready(p);
            }
            model.context.finalize();
            EXPECT_TRUE(model.context.used(0));
            EXPECT_FALSE(model.context.used(1));
            EXPECT_TRUE(model.context.used(2));
            for (const ddp_piece& piece : model.context.pieces()) {
                const float first = 3 + static_cast<float>(piece.first);
                const float want = piece.param == 2 ? first / 3 : first;  // 1: as it was
                EXPECT_FLOAT_EQ(static_cast<float*>(piece.gradient)[0], want) << piece.param;
            }
            model.context.publish();
        }
    });
}

TEST(Shard, AnInfinityIsFoundByItsOwnerAndNamedEverywhere) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Sharded model(group, DDP_CONTEXT_SKIP_NONFINITE);
        model.context.commit();
        for (int step = 0; step < 2; ++step) {
            for (int p = model.count(); p-- > 0;) {
                model.fill(p, 1);
                if (p == 2 && rank == 1 && step == 0) model.grad(2)[498] = INFINITY;
                model.context.grad_ready(p);
            }
            if (step == 0)
                EXPECT_THAT(message_of([&] { model.context.finalize(); }),
                            HasSubstr("the gradient of 'p2' on rank 1 is not finite: element 498 "
                                      "of 500 is inf"));
            else
                model.context.finalize();
        }
        model.context.publish();
    });
}

TEST(Shard, AnUpdateThatFailsBreaksTheStepOnAllRanks) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Sharded model(group);
        model.context.commit();
        model.context.set_update([&](const ddp_piece* const* pieces, std::size_t) {
            if (rank == 1 && pieces[0]->param == 0) throw std::runtime_error("out of patience");
        });
        EXPECT_THAT(message_of([&] { model.step(1); }), HasSubstr("out of patience"));
    });
}

// Nobody updates what takes no part.
TEST(Shard, AnUpdateLeavesOutFrozenParameters) {
    on_ranks(2, [](int, ddp_group* group) {
        Sharded model(group);
        model.context.set_frozen({2}, true);
        model.context.commit();
        model.context.set_update([&](const ddp_piece* const* pieces, std::size_t count) {
            for (std::size_t i = 0; i < count; ++i) {
                EXPECT_NE(pieces[i]->param, 2);
                for (std::int64_t k = 0; k < pieces[i]->count; ++k)
                    static_cast<float*>(pieces[i]->value)[k] =
                        static_cast<const float*>(pieces[i]->gradient)[k];
            }
        });
        for (int step = 0; step < 3; ++step) {
            for (const int p : {1, 0}) {
                model.fill(p, static_cast<float>(step));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            for (int p = 0; p < 3; ++p) {
                model.context.wait_value(p);
                const auto& values = model.data[static_cast<std::size_t>(p)];
                for (std::size_t k = 0; k < values.size(); ++k)
                    EXPECT_EQ(values[k],
                              p == 2 ? 0 : static_cast<float>(step) + static_cast<float>(k));
            }
        }
        EXPECT_THAT(message_of([&] { model.context.discard_step(); }),
                    HasSubstr("cannot be taken back"));
        model.context.publish();
        model.context.set_update({});
        model.context.set_frozen({2}, false);
        model.step(1);
        model.context.publish();
    });
}

TEST(Shard, UpdatesInAStepThatIsDecidedAtItsEndAreRefused) {
    on_ranks(1, [](int, ddp_group* group) {
        for (const std::uint32_t flag : {DDP_CONTEXT_FIND_UNUSED, DDP_CONTEXT_STATIC_GRAPH,
                                         DDP_CONTEXT_SKIP_NONFINITE, DDP_CONTEXT_CHECK}) {
            Sharded model(group, flag);
            model.context.commit();
            EXPECT_THAT(message_of([&] {
                            model.context.set_update([](const ddp_piece* const*, std::size_t) {});
                        }),
                        HasSubstr("at the end of a step"));
        }
    });
}

// Values of bf16 with gradients of f32: the mean has the error of a sum in f32, whatever the world,
// and that of the rule that Megatron-LM has for it (each gradient divided by the world, then added).
TEST(Shard, MeansOfWiderGradientsThanValues) {
    constexpr std::size_t kCount = 1000;
    const auto gradient = [](int rank, std::size_t k) {
        return std::sin(static_cast<float>(k + 1) * (static_cast<float>(rank) + 1.3f));
    };
#ifdef DDP_SANITIZED
    const std::vector<int> worlds{2, 5};
#else
    const std::vector<int> worlds{2, 3, 4, 8, 16, 32, 64};
#endif
    for (const int world : worlds)
        for (const bool shard : {true, false})
            on_ranks(world, [&](int rank, ddp_group* group) {
                BorrowedGroup borrowed(group);
                auto options = ddp::Context::defaults();
                if (shard) options.flags = DDP_CONTEXT_SHARD;
                ddp::Context context(borrowed, options);
                std::vector<std::uint16_t> values(kCount);
                std::vector<float> gradients(kCount);
                const std::int64_t count = kCount;
                ddp_param_desc desc;
                ddp_param_desc_init(&desc);
                desc.name = "w";
                desc.shape = &count;
                desc.ndim = 1;
                desc.dtype = DDP_BF16;
                desc.grad_dtype = DDP_F32;
                desc.data = values.data();
                desc.grad = gradients.data();
                ddp_param param = -1;
                ddp::detail::call(ddp_register_param, context.get(), &desc, &param);
                context.commit();
                for (std::size_t k = 0; k < kCount; ++k) gradients[k] = gradient(rank, k);
                context.grad_ready(param);
                context.finalize();
                std::size_t begin = 0, end = kCount;
                if (shard) {
                    const auto pieces = context.pieces();
                    ASSERT_LE(pieces.size(), 1u);
                    begin = pieces.empty() ? 0 : static_cast<std::size_t>(pieces[0].first);
                    end = pieces.empty() ? 0 : begin + static_cast<std::size_t>(pieces[0].count);
                }
                for (std::size_t k = begin; k < end; ++k) {
                    double sum = 0, size = 0;
                    float by_rule = 0;
                    for (int r = 0; r < world; ++r) {
                        sum += gradient(r, k);
                        size += std::abs(gradient(r, k));
                        by_rule += gradient(r, k) * (1.0f / static_cast<float>(world));
                    }
                    const double bound = 0x1p-24 * (world + 1) * size / world;
                    ASSERT_NEAR(gradients[k], sum / world, bound) << world << " " << k;
                    ASSERT_NEAR(gradients[k], by_rule, 2 * bound) << world << " " << k;
                }
            });
}

TEST(Shard, AnotherGroupMakesOtherPieces) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Sharded model(group);
        model.context.commit();
        model.step(1);
        model.context.publish();
        BorrowedGroup all(group);
        ddp::Group two = all.split(rank == 2 ? 1 : 0, rank);
        model.context.set_group(two);
        std::int64_t owned = 0;
        for (const ddp_piece& piece : model.context.pieces()) owned += piece.count;
        EXPECT_GE(owned, rank == 2 ? 1503 : 740);
        EXPECT_LE(owned, rank == 2 ? 1503 : 763);
        model.step(static_cast<float>(rank));
        for (const ddp_piece& piece : model.context.pieces())
            EXPECT_EQ(static_cast<float*>(piece.gradient)[0],
                      (rank == 2 ? 2.0f : 0.5f) + static_cast<float>(piece.first));
        model.context.publish();
    });
}

// Ranks whose worlds were other ones, and so were the orders in their buckets.
TEST(Shard, RanksFromOtherWorldsMeet) {
    on_ranks(3, [](int rank, ddp_group* group) {
        auto options = Sharded::options(0);
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 1 << 20;
        Model model(group, {100, 30, 70, 500, 64, 20}, true, options);
        for (const int p : {1, 2, 5}) model.context.set_owner(p, DDP_OWNER_WHOLE);
        model.context.set_owner(4, DDP_OWNER_REPLICATED);
        model.context.commit();
        BorrowedGroup all(group);
        ddp::Group apart = all.split(rank == 2 ? 1 : 0, rank);
        for (ddp_group* const next : {apart.get(), group}) {
            ASSERT_EQ(ddp_context_set_group(model.context.get(), next, nullptr), DDP_OK);
            for (int p = model.count(); p-- > 0;) {
                model.context.wait_value(p);
                model.fill(p, static_cast<float>(rank));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            for (const ddp_piece& piece : model.context.pieces())
                for (std::int64_t k = 0; k < piece.count; ++k)
                    static_cast<float*>(piece.value)[k] =
                        static_cast<const float*>(piece.gradient)[k];
            model.context.publish();
            const float mean = next == group ? 1.0f : rank == 2 ? 2.0f : 0.5f;
            for (int p = 0; p < model.count(); ++p) {
                model.context.wait_value(p);
                const auto& values = model.data[static_cast<std::size_t>(p)];
                for (std::size_t k = 0; k < values.size(); ++k)
                    ASSERT_EQ(values[k], mean + static_cast<float>(k)) << p << " " << k;
            }
        }
    });
}

// A rank has updated its values, and another has not when the group breaks.
TEST(Shard, ValuesThatDifferAreRefusedInAnotherGroup) {
    for (const bool in_step : {false, true})
        on_ranks(2, [in_step](int rank, ddp_group* group) {
            BorrowedGroup all(group);
            ddp::Group first = all.split(0, rank), second = all.split(0, rank);
            Sharded model(first.get());
            model.context.set_owner(1, DDP_OWNER_REPLICATED);
            model.context.commit();
            const auto update = [&](float to) {
                for (const ddp_piece& piece : model.context.pieces())
                    std::fill_n(static_cast<float*>(piece.value), piece.count, to);
            };
            if (in_step) {
                model.context.set_update([&](const ddp_piece* const*, std::size_t) {
                    if (rank == 1) throw std::runtime_error("out of patience");
                    update(5);
                });
                message_of([&] { model.step(1); });
            } else {
                model.step(1);
                if (rank == 0) update(5);
                first.abort("enough");
            }
            model.context.set_group(second);
            model.context.set_update({});
            EXPECT_THAT(message_of([&] { model.step(1); }),
                        HasSubstr("the group broke while ranks had different values"));
            model.context.publish();
            model.step(1);
            for (const auto& values : model.data) {
                std::vector<float> of_both(2 * values.size());
                second.allgather(values.data(), of_both.data(), values.size()).wait();
                for (std::size_t k = 0; k < values.size(); ++k)
                    ASSERT_EQ(of_both[k], of_both[values.size() + k]) << k;
            }
            model.context.publish();
            model.wait_for_values();
        });
}

// Values that are on their way arrive before the context goes to another group.
TEST(Shard, ValuesArriveBeforeAnotherGroupComes) {
    on_ranks(2, [](int rank, ddp_group* group) {
        BorrowedGroup all(group);
        ddp::Group second = all.split(0, rank);
        Sharded model(group, 0, false);
        model.context.commit();
        model.step(1);
        EXPECT_THAT(message_of([&] { model.context.set_group(second); }),
                    HasSubstr("not published it"));
        for (const ddp_piece& piece : model.context.pieces())
            std::fill_n(static_cast<float*>(piece.value), piece.count, 7.0f);
        model.context.publish();
        model.context.set_group(second);
        for (const auto& values : model.data)
            for (const float value : values) ASSERT_EQ(value, 7);
        model.context.set_group(all);
    });
}

// One rank would update in the step, and the others after it: named before any value changes.
TEST(Shard, AnUpdateOnOneRankOnlyIsNamedOnAll) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Sharded model(group);
        model.context.commit();
        model.step(1);
        model.context.publish();
        int updates = 0;
        if (rank == 1)
            model.context.set_update([&](const ddp_piece* const*, std::size_t) { ++updates; });
        EXPECT_THAT(message_of([&] { model.step(1); }),
                    HasSubstr("ddp_set_update has given some ranks a function, and others none"));
        EXPECT_EQ(updates, 0);
    });
}

TEST(Shard, MistakesAreNamed) {
    on_ranks(1, [](int, ddp_group* group) {
        Model plain(group, {10}, true);
        EXPECT_THAT(message_of([&] { plain.context.set_owner(0, DDP_OWNER_WHOLE); }),
                    HasSubstr("create the context with DDP_CONTEXT_SHARD"));
        plain.context.commit();
        EXPECT_TRUE(plain.context.pieces().empty());
        EXPECT_THAT(message_of([&] { plain.context.publish(); }), HasSubstr("DDP_CONTEXT_SHARD"));

        Sharded model(group);
        EXPECT_THAT(message_of([&] { model.context.set_owner(3, DDP_OWNER_WHOLE); }),
                    HasSubstr("parameter 3 does not exist"));
        EXPECT_THAT(message_of([&] { model.context.set_owner(0, 3); }), HasSubstr("owner 3"));
        EXPECT_THAT(message_of([&] { model.context.set_owner(0, DDP_OWNER_WHOLE, -1); }),
                    HasSubstr("cost is -1"));
        EXPECT_THAT(message_of([&] { model.context.set_owner(0, DDP_OWNER_REPLICATED, 2); }),
                    HasSubstr("DDP_OWNER_WHOLE"));
        EXPECT_THAT(message_of([&] { model.context.use_hook("post_local_sgd"); }),
                    HasSubstr("does not reduce them"));
        EXPECT_EQ(ddp_piece_count(model.context.get()), -1);
        model.context.commit();
        EXPECT_THAT(message_of([&] { ddp::average_parameters(model.context); }),
                    HasSubstr("comes from its owner"));
        EXPECT_THAT(message_of([&] { model.context.set_owner(0, DDP_OWNER_WHOLE); }),
                    HasSubstr("committed already"));
        ddp_piece piece{};
        piece.struct_size = sizeof piece;
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_piece_get(model.context.get(), 3, &piece, &error),
                  DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(take_message(error), HasSubstr("this rank has 3 pieces"));
        EXPECT_EQ(ddp_piece_get(model.context.get(), 0, nullptr, &error),
                  DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(take_message(error), HasSubstr("piece is NULL"));
        EXPECT_THAT(message_of([&] { model.context.wait_value(7); }), HasSubstr("parameter 7"));
        for (const auto& change : std::vector<std::function<void()>>{
                 [&] { model.context.request_rebuild(); }, [&] { model.context.adopt_plan("{}"); }})
            EXPECT_THAT(message_of(change), HasSubstr("the buckets decide who owns what"));

        for (const std::uint32_t flag : {DDP_CONTEXT_AUTOTUNE, DDP_CONTEXT_CONSENSUS_ORDER})
            EXPECT_THAT(message_of([&] { Sharded(group, flag); }),
                        HasSubstr("DDP_CONTEXT_SHARD does not work with"));
        Sharded sparse(group);
        sparse.context.add_param<float>("s", {2, 2}, sparse.data[0].data(), nullptr,
                                        DDP_PARAM_SPARSE);
        EXPECT_THAT(message_of([&] { sparse.context.commit(); }), HasSubstr("'s' is sparse"));
        Sharded valueless(group);
        valueless.context.add_param<float>("w", {2, 2}, nullptr);
        EXPECT_THAT(message_of([&] { valueless.context.commit(); }), HasSubstr("without data"));
    });
}

TEST(Shard, OwnersMustBeAlike) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Sharded model(group);
        if (rank == 1) model.context.set_owner(1, DDP_OWNER_WHOLE, 7);
        EXPECT_THAT(message_of([&] { model.context.commit(); }),
                    HasSubstr("owned whole, at cost 7"));
    });
}

}  // namespace shard_test
