// norm.h: norms of results, and clipping by them.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace norm_test {

using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kKinds[] = {1, 2, kInfinity};
constexpr std::uint32_t kShard = DDP_CONTEXT_SHARD;

template <class Call>
std::string message_of(Call call) {
    return error_of(call).what();
}

// Each rank says a list of numbers; the bits must be the same.
class Said {
public:
    void add(std::vector<double> numbers) {
        const std::lock_guard lock(mutex_);
        if (all_.empty()) all_ = numbers;
        ASSERT_EQ(all_.size(), numbers.size());
        for (std::size_t i = 0; i < numbers.size(); ++i)
            EXPECT_EQ(std::memcmp(&all_[i], &numbers[i], sizeof(double)), 0)
                << i << ": " << all_[i] << ", " << numbers[i];
    }
    const std::vector<double>& all() const { return all_; }

private:
    std::mutex mutex_;
    std::vector<double> all_;
};

double norm_of(const std::vector<float>& numbers, double p) {
    long double sum = 0, most = 0;
    for (const float x : numbers) {
        const long double size = std::abs(static_cast<long double>(x));
        sum += p == 2 ? size * size : size;
        most = std::max(most, size);
    }
    return static_cast<double>(p == 2 ? std::sqrt(sum) : p == 1 ? sum : most);
}

const std::vector<std::int64_t> kSizes = {1000, 3, 257, 40'000, 0, 1, 5000, 64, 9001, 17};
// So many that ranks share the counting.
const std::vector<std::int64_t> kMany = {1000, 3, 257, 240'000, 0, 1, 50'000, 64, 9001, 17};

// Element k of each gradient, but for a power of two.
float element(std::size_t k) {
    static const std::vector<float> sines = [] {
        std::vector<float> result;
        for (int i = 1; i <= 4999; ++i) result.push_back(std::sin(static_cast<float>(i) * 1.7f));
        return result;
    }();
    return sines[k % sines.size()];
}

struct Training {
    bool shard = false, view = false;
    std::uint64_t cap = 1 << 20;
    std::vector<ddp_owner> owners{};
    std::string hook{};
    std::uint32_t flags = 0;
    ddp_reduction reduction = DDP_REDUCTION_MEAN;
    std::vector<std::int64_t> sizes = kSizes;
};

// Three steps. The norms of all parameters, and of those with odd numbers: p 1, 2, infinity of
// each. results: of the last step, of a rank that has all.
void train(int rank, ddp_group* group, const Training& training, Said& said,
           std::vector<float>* results = nullptr) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = training.cap;
    options.flags = training.flags | (training.shard ? kShard : 0u);
    options.reduction = training.reduction;
    Model model(group, training.sizes, training.view, options);
    for (int p = 0; p < model.count() && !training.owners.empty(); ++p)
        model.context.set_owner(
            p, training.owners[static_cast<std::size_t>(p) % training.owners.size()]);
    for (const double p : kKinds) model.context.track_grad_norm(p);
    for (const double p : kKinds) model.context.track_grad_norm(p, {9, 1, 3, 5, 7});
    model.context.commit();
    if (!training.hook.empty()) model.context.use_hook(training.hook);
    std::vector<double> norms;
    for (int step = 0; step < 3; ++step) {
        if (training.reduction == DDP_REDUCTION_WEIGHTED_MEAN) model.context.set_weight(1 + rank);
        model.context.step_begin();
        for (int p = model.count(); p-- > 0;) {
            model.context.wait_value(p);
            float* const gradient = model.grad(p);
            const float scale = std::ldexp(1.0f, rank - step - p);
            for (std::size_t k = 0; k < model.size(p); ++k) gradient[k] = element(k) * scale;
            model.context.grad_ready(p);
        }
        model.context.finalize();
        for (int i = 0; i < 6; ++i) norms.push_back(model.context.grad_norm(i));
        if (training.shard) model.context.publish();
    }
    for (int p = 0; p < model.count(); ++p) model.context.wait_value(p);
    said.add(norms);
    if (!training.shard && rank == 0) {
        const std::vector<float> all = model.gradients();
        std::vector<float> odd;
        for (int p = 1; p < model.count(); p += 2)
            odd.insert(odd.end(), model.grad(p), model.grad(p) + model.size(p));
        for (std::size_t i = 0; i < 3; ++i) {
            const double want = norm_of(all, kKinds[i]), of_odd = norm_of(odd, kKinds[i]);
            EXPECT_GT(want, of_odd * (i == 2 ? 0.99 : 1.001));
            EXPECT_NEAR(norms[12 + i], want, want * 1e-12);
            EXPECT_NEAR(norms[15 + i], of_odd, of_odd * 1e-12);
        }
    }
    if (results && rank == 0) *results = model.gradients();
}

std::vector<double> train(const RankOptions& options, const Training& training) {
    Said said;
    on_ranks(options, [&](int rank, ddp_group* group) { train(rank, group, training, said); });
    return said.all();
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], want[i], std::abs(want[i]) * 1e-12) << i;
}

const std::vector<ddp_owner> kMixed = {DDP_OWNER_WHOLE, DDP_OWNER_ELEMENTS, DDP_OWNER_REPLICATED};

struct Kind {
    const char* backend;
    const char* options;
};

class Norms : public testing::TestWithParam<std::tuple<int, Kind>> {
protected:
    RankOptions options() const {
        RankOptions result(std::get<0>(GetParam()), std::get<1>(GetParam()).backend);
        result.backend_options = std::get<1>(GetParam()).options;
        result.flags = DDP_GROUP_DETERMINISTIC;
        return result;
    }
};

TEST_P(Norms, AreThoseOfTheResultsWhateverTheBuckets) {
    const std::vector<double> want = train(options(), {});
    for (const bool view : {false, true})
        for (const std::uint64_t cap : {64, 4096, 30'000})
            EXPECT_EQ(train(options(), {false, view, cap}), want);
}

TEST_P(Norms, OfShards) {
    const std::vector<double> want = train(options(), {});
    for (const Training& training :
         {Training{true}, Training{true, true, 64}, Training{true, true, 4096, kMixed},
          Training{true, false, 1 << 20, kMixed}, Training{true, true, 1 << 20, {DDP_OWNER_WHOLE}},
          Training{true, false, 4096, {DDP_OWNER_REPLICATED}},
          Training{true, true, 4096, kMixed, "", DDP_CONTEXT_SKIP_NONFINITE},
          Training{true, false, 4096, kMixed, "", DDP_CONTEXT_REFUSE_NONFINITE},
          Training{true, true, 4096, kMixed, "", DDP_CONTEXT_FIND_UNUSED}})
        expect_near(train(options(), training), want);
    EXPECT_EQ(train(options(), {true, false, 4096, {DDP_OWNER_REPLICATED}}), want);
}

TEST_P(Norms, OtherKindsOfSteps) {
    for (const std::uint32_t flags : {DDP_CONTEXT_SKIP_NONFINITE, DDP_CONTEXT_REFUSE_NONFINITE,
                                      DDP_CONTEXT_FIND_UNUSED, DDP_CONTEXT_CHECK})
        EXPECT_EQ(train(options(), {false, true, 4096, {}, "", flags}), train(options(), {}));
    for (const ddp_reduction reduction : {DDP_REDUCTION_SUM, DDP_REDUCTION_WEIGHTED_MEAN})
        expect_near(train(options(), {true, true, 4096, kMixed, "", 0, reduction}),
                    train(options(), {false, false, 1 << 20, {}, "", 0, reduction}));
}

TEST_P(Norms, HooksThatLeaveTheResultElsewhere) {
    for (const char* hook : {"fp16", "bf16"}) {
        const std::vector<double> want = train(options(), {false, false, 1 << 20, {}, hook});
        expect_near(train(options(), {true, true, 4096, kMixed, hook}), want);
        EXPECT_EQ(train(options(), {false, true, 4096, {}, hook}), want);
    }
}

// train() compares them with the results.
TEST_P(Norms, ThatRanksCountTogether) {
    const auto many = [&](Training training) {
        training.sizes = kMany;
        return train(options(), training);
    };
    const std::vector<double> want = many({});
    EXPECT_EQ(many({false, true}), want);
    constexpr std::uint32_t kVotes = DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_SKIP_UNUSED_BUCKETS;
    for (const std::uint32_t flags : {std::uint32_t{0}, std::uint32_t{DDP_CONTEXT_SKIP_NONFINITE},
                                      std::uint32_t{DDP_CONTEXT_REFUSE_NONFINITE}, kVotes})
        expect_near(many({false, true, 100'000, {}, "", flags}), want);
    many({false, true, 300'000, {}, "", 0, DDP_REDUCTION_WEIGHTED_MEAN});
    for (const char* hook : {"fp16", "powersgd"}) many({false, true, 300'000, {}, hook});
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, Kind>>& instance) {
    return std::get<1>(instance.param).backend + std::to_string(std::get<0>(instance.param));
}

INSTANTIATE_TEST_SUITE_P(Worlds, Norms,
                         testing::Combine(testing::Values(1, 2, 3, 5),
                                          testing::Values(Kind{"threads", ""})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Backends, Norms,
                         testing::Combine(testing::Values(3),
                                          testing::Values(Kind{"tcp", ""}, Kind{"shm", ""},
                                                          Kind{"gloo", ""})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Alone, Norms,
                         testing::Combine(testing::Values(1),
                                          testing::Values(Kind{"shm", ""}, Kind{"tcp", ""})),
                         name_of);

// A context with a norm of all, of p 2.
struct Normed : Model {
    // first: the length of the first parameter.
    explicit Normed(ddp_group* group, std::uint32_t flags = 0, bool view = true,
                    std::int64_t first = 1000)
        : Model(group, {first, 3, 500}, view, options(flags)) {
        norm = context.track_grad_norm();
    }
    static ddp_context_options options(std::uint32_t flags) {
        auto result = ddp::Context::defaults();
        result.flags = flags;
        result.bucket_cap_bytes = result.first_bucket_cap_bytes = 2000;
        return result;
    }
    void announce(float value) {
        for (int p = count(); p-- > 0;) {
            context.wait_value(p);
            std::fill_n(grad(p), size(p), value);
            context.grad_ready(p);
        }
    }
    void step(float value) {
        announce(value);
        context.finalize();
    }
    double value() { return context.grad_norm(norm); }
    // The norm of gradients of ones.
    double ones() const { return std::sqrt(static_cast<double>(size(0)) + 503); }

    std::int32_t norm;
};

// Few numbers; so many that ranks share the counting; and shards.
struct Counting {
    std::int64_t first;
    bool shard;
};
constexpr Counting kCounting[] = {{1000, false}, {300'000, false}, {1000, true}};

TEST(Norm, EveryType) {
    constexpr ddp_dtype kTypes[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_C64, DDP_C128};
    constexpr std::size_t kCount = 100;
    for (const bool view : {false, true})
        on_ranks(2, [&](int rank, ddp_group* group) {
            BorrowedGroup borrowed(group);
            ddp::Context context(borrowed, ddp::Context::defaults());
            std::vector<std::vector<std::byte>> memory;
            for (const ddp_dtype dtype : kTypes) {
                memory.emplace_back(kCount * libddp::dtype_size(dtype));
                const std::string name = libddp::dtype_name(dtype);
                const std::int64_t count = kCount;
                ddp_param_desc desc;
                ddp_param_desc_init(&desc);
                desc.name = name.c_str();
                desc.shape = &count;
                desc.ndim = 1;
                desc.dtype = dtype;
                desc.grad = view ? nullptr : memory.back().data();
                ddp_param param = -1;
                ddp::detail::call(ddp_register_param, context.get(), &desc, &param);
            }
            for (const double p : kKinds) {
                context.track_grad_norm(p);
                for (ddp_param param = 0; param < 6; ++param) context.track_grad_norm(p, {param});
            }
            context.commit();
            context.step_begin();
            for (ddp_param param = 0; param < 6; ++param) {
                const ddp_dtype dtype = kTypes[param];
                void* place = memory[static_cast<std::size_t>(param)].data();
                if (view) ddp::detail::call(ddp_grad_view, context.get(), param, &place);
                // the mean: 3, of complex numbers 3 + 4i; rank 1 has twice that, and rank 0 zero
                const double number = rank * 6, other = rank * 8;
                for (std::size_t i = 0; i < kCount; ++i) {
                    const double parts[] = {number, other};
                    auto* const at = static_cast<std::byte*>(place) + i * libddp::dtype_size(dtype);
                    if (dtype == DDP_F64 || dtype == DDP_C128)
                        std::memcpy(at, parts, libddp::dtype_size(dtype));
                    else
                        libddp::cpu::convert(at, dtype, parts,
                                             libddp::is_complex(dtype) ? DDP_C128 : DDP_F64, 1);
                }
                context.grad_ready(param);
            }
            context.finalize();
            const double want[3][3] = {{300, 500, 2200}, {30, 50, std::sqrt(8600)}, {3, 5, 5}};
            for (int kind = 0; kind < 3; ++kind) {
                EXPECT_DOUBLE_EQ(context.grad_norm(kind * 7), want[kind][2]);
                for (int param = 0; param < 6; ++param)
                    EXPECT_EQ(context.grad_norm(kind * 7 + 1 + param), want[kind][param / 4])
                        << kind << " " << param;
            }
        });
}

// Their gradients hold something, which does not count.
TEST(Norm, WhatNoRankUsesIsZero) {
    for (const bool shard : {false, true})
        on_ranks(3, [&](int rank, ddp_group* group) {
            Normed model(group, DDP_CONTEXT_FIND_UNUSED | (shard ? kShard : 0u), false);
            const std::int32_t none = model.context.track_grad_norm(2, {1});
            model.context.commit();
            for (int step = 0; step < 3; ++step) {
                for (int p = 0; p < 3; ++p) {
                    model.context.wait_value(p);
                    std::fill_n(model.grad(p), model.size(p), 3.0f);
                    if (p == 0 || (p == 2 && rank == 1)) model.context.grad_ready(p);
                }
                model.context.finalize();
                EXPECT_EQ(model.context.grad_norm(none), 0);
                EXPECT_NEAR(model.value(), std::sqrt(1000 * 9 + 500 * 1), 1e-5);
                model.context.clip_grad_norm(model.norm, 1);
                EXPECT_EQ(model.grad(1)[0], 3);
                if (shard) model.context.publish();
            }
            model.context.set_frozen({0}, true);
            for (int p = 0; p < 3; ++p) {
                model.context.wait_value(p);
                std::fill_n(model.grad(p), model.size(p), 2.0f);
                if (p > 0) model.context.grad_ready(p);
            }
            model.context.finalize();
            EXPECT_NEAR(model.value(), std::sqrt(503 * 4), 1e-6);
        });
}

TEST(Norm, OnlyStepsWithResultsHaveOne) {
    on_ranks(2, [](int, ddp_group* group) {
        Normed model(group, DDP_CONTEXT_SKIP_NONFINITE);
        model.context.commit();
        const auto none = [&] {
            EXPECT_THAT(message_of([&] { model.value(); }), HasSubstr("the last step has no norm"));
            EXPECT_THAT(message_of([&] { model.context.clip_grad_norm(model.norm, 1); }),
                        HasSubstr("the last step has no norm"));
        };
        none();
        model.step(2);
        EXPECT_EQ(model.value(), 2 * std::sqrt(1503.0));
        EXPECT_EQ(model.value(), 2 * std::sqrt(1503.0));
        model.context.set_sync(false);
        model.step(2);
        none();
        model.context.set_sync(true);
        model.step(3);
        EXPECT_EQ(model.value(), 3 * std::sqrt(1503.0));
        model.announce(4);
        EXPECT_THAT(message_of([&] { model.value(); }), HasSubstr("step 3"));
        model.context.discard_step();
        none();
        EXPECT_THAT(message_of([&] { model.step(NAN); }), HasSubstr("is not finite"));
        none();
        model.step(1);
        EXPECT_EQ(model.value(), std::sqrt(1503.0));
    });
}

TEST(Norm, ClipsAsPyTorchDoes) {
    for (const bool shard : {false, true})
        for (const bool view : {false, true})
            on_ranks(3, [&](int, ddp_group* group) {
                Normed model(group, shard ? kShard : 0u, view);
                const std::int32_t middle = model.context.track_grad_norm(kInfinity, {1});
                model.context.commit();
                const auto holds = [&](std::vector<float> want) {
                    if (!shard) {
                        for (int p = 0; p < 3; ++p)
                            for (std::size_t k = 0; k < model.size(p); ++k)
                                EXPECT_EQ(model.grad(p)[k], want[static_cast<std::size_t>(p)]);
                        return;
                    }
                    for (const ddp_piece& piece : model.context.pieces())
                        for (std::int64_t k = 0; k < piece.count; ++k)
                            EXPECT_EQ(static_cast<float*>(piece.gradient)[k],
                                      want[static_cast<std::size_t>(piece.param)]);
                    model.context.publish();
                };
                const double norm = 2 * std::sqrt(1503.0);
                model.step(2);
                EXPECT_NEAR(model.context.clip_grad_norm(model.norm, 1e9), norm, 1e-9);
                holds({2, 2, 2});
                model.step(2);
                EXPECT_EQ(model.context.clip_factor(model.norm, 1e9), 1);
                EXPECT_NEAR(model.context.clip_factor(model.norm, 10), 10 / (norm + 1e-6), 1e-12);
                EXPECT_NEAR(model.context.clip_grad_norm(model.norm, 10), norm, 1e-9);
                EXPECT_THAT(message_of([&] { model.context.clip_factor(model.norm, 10); }),
                            HasSubstr("'p0' was clipped in this step already"));
                EXPECT_THAT(message_of([&] { model.context.clip_grad_norm(model.norm, 10); }),
                            HasSubstr("'p0' was clipped in this step already"));
                EXPECT_THAT(message_of([&] { model.context.clip_grad_norm(middle, 10); }),
                            HasSubstr("'p1' was clipped in this step already"));
                EXPECT_NEAR(model.value(), norm, 1e-9);
                const auto clipped = static_cast<float>(10 / (norm + 1e-6) * 2);
                holds({clipped, clipped, clipped});
                model.step(2);
                EXPECT_EQ(model.context.clip_grad_norm(middle, 0), 2);
                holds({2, 0, 2});
            });
}

TEST(Norm, ClippingANormThatIsNotFiniteNamesAParameterEverywhere) {
    for (const auto& [first, shard] : kCounting)
        on_ranks(3, [first = first, shard = shard](int rank, ddp_group* group) {
            Normed model(group, shard ? kShard : 0u, true, first);
            model.context.commit();
            for (int p = model.count(); p-- > 0;) {
                model.context.wait_value(p);
                std::fill_n(model.grad(p), model.size(p), 1.0f);
                if (p == 2 && rank == 1) model.grad(p)[498] = NAN;
                model.context.grad_ready(p);
            }
            model.context.finalize();
            EXPECT_TRUE(std::isnan(model.value()));
            const auto error = error_of([&] { model.context.clip_grad_norm(model.norm, 1); });
            EXPECT_EQ(error.status(), DDP_ERROR_NONFINITE);
            EXPECT_EQ(error.param(), 2);
            EXPECT_THAT(error.what(), HasSubstr("norm 0 is nan; the first result that is not "
                                                "finite, or too large for its squares, is that for "
                                                "'p2'"));
            EXPECT_THAT(message_of([&] { model.context.clip_factor(model.norm, 1); }),
                        HasSubstr("norm 0 is nan"));
            if (shard) model.context.publish();
            model.step(1);
            EXPECT_EQ(model.value(), model.ones());
        });
}

// It is found before any result, and named on all ranks, whoever owns it.
TEST(Norm, TravelsWithTheAgreementOnBadNumbers) {
    for (const auto& [first, shard] : kCounting)
        for (const std::uint32_t flag : {DDP_CONTEXT_SKIP_NONFINITE, DDP_CONTEXT_REFUSE_NONFINITE})
            on_ranks(3, [first = first, shard = shard, flag](int rank, ddp_group* group) {
                Normed model(group, flag | (shard ? kShard : 0u), true, first);
                model.context.commit();
                model.step(2);
                EXPECT_NEAR(model.value(), 2 * model.ones(), 1e-9);
                const auto bad = [&] {
                    if (shard) model.context.publish();
                    for (int p = model.count(); p-- > 0;) {
                        model.context.wait_value(p);
                        std::fill_n(model.grad(p), model.size(p), 1.0f);
                        if (p == 2 && rank == 1) model.grad(p)[498] = INFINITY;
                        model.context.grad_ready(p);
                    }
                    model.context.finalize();
                };
                EXPECT_THAT(message_of(bad), HasSubstr("the gradient of 'p2' on rank 1 is not "
                                                       "finite: element 498 of 500 is inf"));
                if (flag == DDP_CONTEXT_REFUSE_NONFINITE) return;
                if (shard) model.context.publish();
                model.step(1);
                EXPECT_NEAR(model.value(), model.ones(), 1e-9);
            });
}

// The gradients are finite, their sum is not.
TEST(Norm, ResultsThatOverflowAreNamed) {
    for (const auto& [first, shard] : kCounting)
        on_ranks(2, [first = first, shard = shard](int, ddp_group* group) {
            Normed model(group, DDP_CONTEXT_SKIP_NONFINITE | (shard ? kShard : 0u), true, first);
            model.context.commit();
            model.context.use_hook("fp16");
            for (int p = model.count(); p-- > 0;) {
                model.context.wait_value(p);
                std::fill_n(model.grad(p), model.size(p), p == 1 ? 6e5f : 1.0f);
                model.context.grad_ready(p);
            }
            EXPECT_THAT(message_of([&] { model.context.finalize(); }),
                        HasSubstr("the result for 'p1' is not finite"));
        });
}

TEST(Norm, SparseRowsCountOnceAsTheirSum) {
    on_ranks(2, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed, ddp::Context::defaults());
        const ddp_param param =
            context.add_param<float>("s", {4, 2}, nullptr, nullptr, DDP_PARAM_SPARSE);
        const std::int32_t norm = context.track_grad_norm();
        context.commit();
        // row 1 has (1, 2) twice on rank 0 and once on rank 1; row 3 has (4, 0) on rank 1
        const std::vector<float> values = {1, 2, rank == 0 ? 1.0f : 4.0f, rank == 0 ? 2.0f : 0.0f};
        context.sparse_grad_ready(param, {1, rank == 0 ? 1 : 3}, values.data());
        context.finalize();
        EXPECT_DOUBLE_EQ(context.grad_norm(norm), std::sqrt(1.5 * 1.5 + 3 * 3 + 2 * 2));
        context.clip_grad_norm(norm, 1);
        const auto [indices, rows] = context.sparse_gradient<float>(param);
        ASSERT_EQ(indices, (std::vector<std::int64_t>{1, 3}));
        EXPECT_FLOAT_EQ(rows[1], static_cast<float>(3 / (std::sqrt(15.25) + 1e-6)));
    });
}

TEST(Norm, FactoredGradientsCountWhole) {
    on_ranks(2, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed, ddp::Context::defaults());
        std::vector<float> gradient(12);
        const ddp_param param =
            context.add_param<float>("f", {3, 4}, nullptr, gradient.data(), DDP_PARAM_FACTORED);
        const std::int32_t norm = context.track_grad_norm();
        context.commit();
        const std::vector<float> left = {1, 2, 3}, right = {1, 1, 1, 1 + 2 * rank * 1.0f};
        context.factors_grad_ready(param, left.data(), right.data(), 1);
        context.finalize();
        EXPECT_NEAR(context.grad_norm(norm), norm_of(gradient, 2), 1e-12);
        EXPECT_NEAR(context.grad_norm(norm), std::sqrt(14.0 * (3 + 4)), 1e-6);
    });
}

TEST(Norm, ARankThatHasJoinedIsNoneOfIt) {
    for (const char* hook : {"allreduce", "fp16"})
        for (const std::uint32_t flag :
             {std::uint32_t{0}, std::uint32_t{DDP_CONTEXT_SKIP_NONFINITE}})
            for (const std::int64_t first : {1000, 300'000})
                on_ranks(2, [=](int rank, ddp_group* group) {
                    Normed model(group, DDP_CONTEXT_JOIN | flag, true, first);
                    model.context.commit();
                    model.context.use_hook(hook);
                    for (int step = 0; step < 1 + 2 * rank; ++step) {
                        model.context.step_begin();
                        model.step(2);
                        EXPECT_EQ(model.value(), (step == 0 ? 2 : 1) * model.ones());
                    }
                    model.context.join();
                });
}

TEST(Norm, MistakesAreNamed) {
    on_ranks(1, [](int, ddp_group* group) {
        Model plain(group, {10}, true);
        plain.context.commit();
        EXPECT_THAT(message_of([&] { plain.context.grad_norm(0); }),
                    HasSubstr("call ddp_track_grad_norm before ddp_commit"));
        EXPECT_THAT(message_of([&] { plain.context.track_grad_norm(); }),
                    HasSubstr("committed already"));
        Normed model(group);
        EXPECT_THAT(message_of([&] { model.context.track_grad_norm(3); }), HasSubstr("p is 3"));
        EXPECT_THAT(message_of([&] { model.context.track_grad_norm(NAN); }), HasSubstr("p is nan"));
        EXPECT_THAT(message_of([&] {
                        model.context.track_grad_norm(2, {0, 3});
                    }),
                    HasSubstr("parameter 3 does not exist"));
        EXPECT_THAT(message_of([&] {
                        model.context.track_grad_norm(2, {1, 0, 1});
                    }),
                    HasSubstr("'p1' is in params twice"));
        EXPECT_THAT(message_of([&] { model.context.track_grad_norm(2, {}); }),
                    HasSubstr("count is 0"));
        model.context.commit();
        model.step(1);
        EXPECT_THAT(message_of([&] { model.context.grad_norm(1); }), HasSubstr("norm is 1"));
        EXPECT_THAT(message_of([&] { model.context.clip_grad_norm(0, NAN); }),
                    HasSubstr("max_norm is nan"));
        EXPECT_THAT(message_of([&] { model.context.clip_grad_norm(0, -1); }),
                    HasSubstr("max_norm is -1"));
        EXPECT_THAT(message_of([&] { model.context.use_hook("noop"); }),
                    HasSubstr("does not reduce gradients"));

        Normed sharded(group, DDP_CONTEXT_SHARD);
        sharded.context.commit();
        EXPECT_THAT(message_of([&] {
                        sharded.context.set_update([](const ddp_piece* const*, std::size_t) {});
                    }),
                    HasSubstr("ddp_track_grad_norm"));

        Normed local(group, DDP_CONTEXT_KEEP_LOCAL_UNUSED | DDP_CONTEXT_FIND_UNUSED);
        EXPECT_THAT(message_of([&] { local.context.commit(); }),
                    HasSubstr("DDP_CONTEXT_KEEP_LOCAL_UNUSED"));
        Normed numbers(group);
        std::vector<std::int32_t> values(4);
        numbers.context.add_param<std::int32_t>("n", {4}, values.data());
        EXPECT_THAT(message_of([&] { numbers.context.commit(); }),
                    HasSubstr("'n' is i32, which has no norm"));
        Model hooked(group, {10}, true);
        hooked.context.use_hook("noop");
        hooked.context.track_grad_norm();
        EXPECT_THAT(message_of([&] { hooked.context.commit(); }),
                    HasSubstr("does not reduce gradients"));
    });
}

TEST(Norm, RanksMustAskForTheSame) {
    const auto differ = [](const auto& ask, const char* text) {
        on_ranks(2, [&](int rank, ddp_group* group) {
            Normed model(group);
            ask(model.context, rank);
            EXPECT_THAT(message_of([&] { model.context.commit(); }), HasSubstr(text));
        });
    };
    differ([](ddp::Context& c, int rank) { c.track_grad_norm(rank + 1); }, "norm 1: 1 of all");
    differ([](ddp::Context& c, int rank) { c.track_grad_norm(2, {rank}); },
           "norm 1: 2 of 1 parameters");
    differ(
        [](ddp::Context& c, int rank) {
            if (rank == 0) c.track_grad_norm(kInfinity);
        },
        "norm 1: infinity of all");
}

}  // namespace norm_test
