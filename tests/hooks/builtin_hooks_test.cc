// Hooks by name, in lower precision, and followed by an optimizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::ElementsAre;
using testing::HasSubstr;

namespace builtin_hooks_test {

ddp_context_options small_buckets() {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = 256;
    return options;
}

// Numbers of many magnitudes, of which f16 and bf16 hold few exactly.
float value(int rank, int param, std::size_t k) {
    return std::ldexp(
        std::sin(static_cast<float>(1 + rank * 7 + param * 3) * static_cast<float>(k + 1)),
        static_cast<int>(k % 12) - 6);
}

void step(Model& m, int rank) {
    m.context.step_begin();
    for (int i = m.count() - 1; i >= 0; --i) {
        for (std::size_t k = 0; k < m.size(i); ++k) m.grad(i)[k] = value(rank, i, k);
        m.context.grad_ready(i);
    }
    m.context.finalize();
}

const std::vector<std::int64_t> kSizes{100, 7, 64, 0, 333};

class BuiltinHooks : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ViewAndCopy, BuiltinHooks, testing::Bool());

TEST_P(BuiltinHooks, LosslessHooksEqualNoHook) {
    for (const char* backend : {"threads", "threads-plain", "threads-caller", "tcp"})
        on_ranks({3, backend}, [&](int rank, ddp_group* group) {
            Model plain(group, kSizes, GetParam(), small_buckets()),
                hooked(group, kSizes, GetParam(), small_buckets());
            plain.context.commit();
            hooked.context.use_hook("allreduce");
            hooked.context.commit();
            int called = 0;
            for (int s = 0; s < 4; ++s) {
                if (s == 2)
                    hooked.context.hook_then([&](ddp_group*, ddp_bucket*) { ++called; },
                                             DDP_WORK_ANY_THREAD);
                step(plain, rank);
                step(hooked, rank);
                EXPECT_EQ(plain.gradients(), hooked.gradients());
            }
            EXPECT_EQ(called, 2 * ddp_context_bucket_count(hooked.context.get()));
        });
}

struct Precision {
    const char* name;
    ddp_dtype dtype;
    float relative;  // the error of one rounding
    float smallest;  // below it numbers lose bits
};
const Precision kPrecisions[] = {{"fp16", DDP_F16, 0x1p-11f, 0x1p-14f},
                                 {"bf16", DDP_BF16, 0x1p-8f, 0x1p-126f}};

// Each rank's gradient is rounded, and their mean once more. The mean itself may lie near zero, so
// errors are relative to the mean magnitude.
TEST_P(BuiltinHooks, LowPrecisionRoundsOnceARankAndOnceMore) {
    for (const auto& p : kPrecisions)
        for (int world : {1, 2, 3})
            on_ranks({world}, [&](int rank, ddp_group* group) {
                Model m(group, kSizes, GetParam(), small_buckets());
                m.context.use_hook(p.name);
                EXPECT_EQ(m.context.hook_name(), std::string(p.name) + "(allreduce)");
                m.context.commit();
                for (int s = 0; s < 3; ++s) {
                    step(m, rank);
                    for (int i = 0; i < m.count(); ++i)
                        for (std::size_t k = 0; k < m.size(i); ++k) {
                            double mean = 0, magnitude = 0;
                            for (int r = 0; r < world; ++r) {
                                mean += value(r, i, k) / static_cast<double>(world);
                                magnitude += std::fabs(value(r, i, k)) / world;
                            }
                            ASSERT_NEAR(m.grad(i)[k], mean,
                                        2.01 * p.relative * magnitude + p.smallest * p.relative)
                                << p.name << " world " << world << " parameter " << i << " element "
                                << k;
                        }
                }
            });
}

TEST_P(BuiltinHooks, LowPrecisionSendsHalf) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, {1024, 4096}, GetParam());
        m.context.commit();
        step(m, rank);
        EXPECT_EQ(m.context.stats().hook_bytes_in, 5120u * 4);
        EXPECT_EQ(m.context.stats().hook_bytes_out, 5120u * 4);
        m.context.use_hook("bf16");
        EXPECT_EQ(m.context.stats().hook_bytes_in, 0u) << "counted from the installation on";
        step(m, rank);
        step(m, rank);
        EXPECT_EQ(m.context.stats().hook_bytes_in, 2 * 5120u * 4);
        EXPECT_EQ(m.context.stats().hook_bytes_out, 2 * 5120u * 2);
        m.context.use_hook("noop");
        step(m, rank);
        EXPECT_EQ(m.context.stats().hook_bytes_out, 0u);
    });
}

TEST(LowPrecision, LeavesOtherTypesAlone) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::int32_t whole[3];
        double wide[3];
        std::uint16_t half[3];
        const auto param = [&](const char* name, ddp_dtype dtype, void* grad) {
            const std::int64_t shape[] = {3};
            ddp_param_desc d;
            ddp_param_desc_init(&d);
            d.name = name, d.shape = shape, d.ndim = 1, d.dtype = dtype, d.grad = grad;
            ddp_param made = -1;
            ASSERT_EQ(ddp_register_param(context.get(), &d, &made, nullptr), DDP_OK);
        };
        param("whole", DDP_I32, whole);
        param("wide", DDP_F64, wide);
        param("half", DDP_F16, half);
        context.use_hook("fp16");
        context.commit();
        for (int k = 0; k < 3; ++k) {
            whole[k] = 1'000'001 + rank;  // too large for f16
            wide[k] = 1.5 + rank;
            half[k] = rank == 0 ? 0x3c00 : 0x4200;  // 1 and 3
        }
        for (int i = 0; i < 3; ++i) context.grad_ready(i);
        context.finalize();
        EXPECT_THAT(whole, ElementsAre(1'000'001, 1'000'001, 1'000'001));
        EXPECT_THAT(wide, ElementsAre(2, 2, 2));
        EXPECT_THAT(half, ElementsAre(0x4000, 0x4000, 0x4000));
    });
}

TEST(LowPrecision, OverflowIsInfiniteAndNansStay) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Model m(group, {3}, true);
        m.context.use_hook("fp16");
        m.context.commit();
        m.grad(0)[0] = 1e6f;
        m.grad(0)[1] = rank == 1 ? std::numeric_limits<float>::quiet_NaN() : 1;
        m.grad(0)[2] = 60'000;  // their sum is beyond f16, their mean is not
        m.context.grad_ready(0);
        m.context.finalize();
        EXPECT_EQ(m.grad(0)[0], std::numeric_limits<float>::infinity());
        EXPECT_TRUE(std::isnan(m.grad(0)[1]));
        EXPECT_EQ(m.grad(0)[2], 60'000);
    });
}

// A user's hook sees the bucket in f16, and may give back a buffer of its own in yet another type.
TEST_P(BuiltinHooks, WrapsUserHooks) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, {10, 20}, GetParam());
        std::vector<double> result;
        std::vector<int> dtypes;
        m.context.set_comm_hook([&](ddp_group* g, ddp_bucket* b) {
            dtypes.push_back(ddp_bucket_dtype(b));
            EXPECT_EQ(ddp_bucket_op(b), DDP_AVG);
            ddp_tensor t{};
            t.struct_size = sizeof t;
            ddp::detail::call(ddp_bucket_gradient, static_cast<const ddp_bucket*>(b), 0, &t);
            EXPECT_EQ(t.dtype, DDP_F16);
            EXPECT_EQ(t.data, ddp_bucket_buffer(b));
            ddp::detail::call(ddp_bucket_parameter, static_cast<const ddp_bucket*>(b), 0, &t);
            EXPECT_EQ(t.dtype, DDP_F32) << "the value is not compressed";
            result.assign(ddp_bucket_count(b), 8 * (1 + ddp_group_rank(g)));
            ddp_work* work = nullptr;
            ddp::detail::call(ddp_allreduce, g, static_cast<const void*>(nullptr),
                              static_cast<void*>(result.data()), result.size(), DDP_F64, DDP_AVG,
                              &work);
            ddp::detail::call(ddp_bucket_set_buffer, b, static_cast<void*>(result.data()), DDP_F64);
            return ddp::Work(work);
        });
        m.context.compress_hook(DDP_F16);
        EXPECT_EQ(m.context.hook_name(), "fp16(user)");
        m.context.commit();
        for (int s = 0; s < 2; ++s) {
            step(m, rank);
            for (int i = 0; i < 2; ++i) EXPECT_TRUE(m.holds(i, 12, 0));
        }
        EXPECT_THAT(dtypes, ElementsAre(DDP_F16, DDP_F16));
    });
}

TEST_P(BuiltinHooks, NoopLeavesEachRankItsOwn) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, {10, 20}, GetParam());
        m.context.use_hook("noop");
        m.context.commit();
        step(m, rank);
        for (int i = 0; i < 2; ++i)
            for (std::size_t k = 0; k < m.size(i); ++k) EXPECT_EQ(m.grad(i)[k], value(rank, i, k));
    });
}

// The bucket that the optimizer sees holds the result, also where the hook had left it elsewhere.
TEST_P(BuiltinHooks, TheOptimizerSeesReducedGradientsInOrder) {
    for (const char* hook : {"allreduce", "fp16", "noop"})
        for (std::uint32_t flags : {0u, unsigned{DDP_WORK_ANY_THREAD}})
            on_ranks({2}, [&](int rank, ddp_group* group) {
                Model m(group, {100, 7, 64}, GetParam(), small_buckets());
                m.context.use_hook(hook);
                std::vector<int> order;
                m.context.hook_then(
                    [&](ddp_group*, ddp_bucket* b) {
                        order.push_back(ddp_bucket_index(b));
                        for (int i = 0; i < ddp_bucket_param_count(b); ++i) {
                            ddp_tensor gradient{}, param{};
                            gradient.struct_size = param.struct_size = sizeof gradient;
                            ddp::detail::call(ddp_bucket_gradient,
                                              static_cast<const ddp_bucket*>(b), i, &gradient);
                            ddp::detail::call(ddp_bucket_parameter,
                                              static_cast<const ddp_bucket*>(b), i, &param);
                            for (std::int64_t k = 0; k < gradient.count; ++k)
                                static_cast<float*>(param.data)[k] -=
                                    static_cast<float*>(gradient.data)[k];
                        }
                    },
                    flags);
                m.context.commit();
                step(m, rank);
                const int buckets = ddp_context_bucket_count(m.context.get());
                ASSERT_EQ(order.size(), static_cast<std::size_t>(buckets));
                for (int b = 0; b < buckets; ++b) EXPECT_EQ(order[static_cast<std::size_t>(b)], b);
                for (int i = 0; i < m.count(); ++i)
                    for (std::size_t k = 0; k < m.size(i); ++k)
                        EXPECT_EQ(m.data[static_cast<std::size_t>(i)][k], -m.grad(i)[k]) << hook;
            });
}

// The other rank may have had its result by then, and meets the error in its next step.
TEST(HookThen, FailuresNameTheBucket) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Model m(group, {100, 7, 64}, true, small_buckets());
        m.context.hook_then([&](ddp_group*, ddp_bucket* b) {
            if (rank == 1 && ddp_bucket_index(b) == 1)
                throw std::runtime_error("the learning rate is lost");
        });
        m.context.commit();
        const Facts facts = facts_of([&] {
            step(m, rank);
            EXPECT_EQ(rank, 0);
            step(m, rank);
        });
        EXPECT_EQ(facts, (Facts{DDP_ERROR_CALLBACK, 1, -1, 1, 0}));
        EXPECT_THAT(facts.message, HasSubstr("the learning rate is lost"));
    });
}

TEST(HookThen, ItsDataIsDestroyedOnce) {
    static int destroyed;
    destroyed = 0;
    on_ranks({1}, [](int, ddp_group* group) {
        Model m(group, {2}, true);
        const auto nothing =
            +[](void*, ddp_group*, ddp_bucket*, ddp_error**) -> ddp_status { return DDP_OK; };
        const auto destroy = +[](void*) { ++destroyed; };
        int data = 0;
        ASSERT_EQ(ddp_hook_then(m.context.get(), nothing, &data, destroy, 0, nullptr), DDP_OK);
        m.context.compress_hook(DDP_BF16);
        m.context.commit();
        EXPECT_EQ(destroyed, 0);
        m.context.grad_ready(0);
        EXPECT_EQ(ddp_hook_then(m.context.get(), nothing, &data, destroy, 0, nullptr),
                  DDP_ERROR_INVALID_STATE);
        EXPECT_EQ(destroyed, 0) << "a refused function stays the caller's";
        m.context.finalize();
        m.context.use_hook("allreduce");
        EXPECT_EQ(destroyed, 1);
    });
    EXPECT_EQ(destroyed, 1);
}

TEST(HookByName, RanksMustChooseTheSame) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Model m(group, {2000}, true);
        m.context.use_hook("topk", rank == 0 ? "ratio=0.1" : "ratio=0.2");
        m.context.commit();
        const Facts facts = facts_of([&] { step(m, rank); });
        EXPECT_EQ(facts, (Facts{DDP_ERROR_MISMATCH, facts.rank, -1, 0, 0}));
    });
}

}  // namespace builtin_hooks_test
