// The largest elements: which they are, and that the others come later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "hooks/any_model.h"
#include "kernels/cpu/largest.h"
#include "support/ranks.h"

namespace topk_test {

// By sorting.
template <class Real>
std::vector<std::size_t> largest_sorted(const std::vector<Real>& x, std::size_t k) {
    std::vector<std::size_t> order(x.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::fabs(x[a]) > std::fabs(x[b]);
    });
    order.resize(k);
    std::sort(order.begin(), order.end());
    return order;
}

template <class Real>
void expect_largest(const std::vector<Real>& x) {
    for (std::size_t k = 1; k <= x.size(); k = k < 4 ? k + 1 : k * 5 / 3 + 1) {
        std::vector<std::size_t> taken;
        libddp::cpu::Largest(x.data(), x.size(), k)
            .for_each(x.data(), x.size(), [&](std::size_t i) { taken.push_back(i); });
        ASSERT_EQ(taken, largest_sorted(x, k)) << k << " of " << x.size();
    }
}

template <class Real>
class LargestTest : public testing::Test {};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(LargestTest, Reals);

TYPED_TEST(LargestTest, EqualsSorting) {
    using Real = TypeParam;
    std::mt19937 random(3);
    std::normal_distribution<Real> normal;
    std::uniform_int_distribution<int> exponent(std::numeric_limits<Real>::min_exponent - 20,
                                                std::numeric_limits<Real>::max_exponent - 4);
    std::vector<Real> x;
    expect_largest<Real>({Real(-0.5)});
    expect_largest<Real>(std::vector<Real>(100, Real(0)));
    for (int i = 0; i < 2000; ++i) x.push_back(normal(random));
    expect_largest(x);
    for (auto& value : x) value = std::round(2 * value);  // many equal ones, zeros of both signs
    expect_largest(x);
    for (auto& value : x) value = std::ldexp(normal(random), exponent(random));
    x[7] = std::numeric_limits<Real>::max();
    x[9] = -std::numeric_limits<Real>::denorm_min();
    expect_largest(x);
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = 1 + static_cast<Real>(i % 37) * std::numeric_limits<Real>::epsilon();
    expect_largest(x);
}

TEST(TopK, TakesTheLargestAndOfEqualOnesTheFirst) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64}) {
            AnyModel m(group, {{dtype, 8}}, true);
            m.context.use_hook("topk", "ratio=0.3,min_elements=0");
            m.context.commit();
            const Numbers values[] = {{3, -3, 1, 3, 0, -3, 2, 0}, {0, 0, 0, 0, 0, 0, 0, -8}};
            m.step([&](int) { return values[rank]; });
            // Three of each rank: 3, -3, 3, and zeros with -8.
            EXPECT_EQ(m.numbers(0), (Numbers{1.5, -1.5, 0, 1.5, 0, 0, 0, -4}));
        }
    });
}

// k is the share rounded up, and not one more because 0.07 * 100 is a little above 7.
TEST(TopK, HowMany) {
    struct Case {
        const char* ratio;
        std::int64_t count;
        std::size_t k;
    };
    on_ranks({1}, [](int, ddp_group* group) {
        for (const Case& c :
             {Case{"0.07", 100, 7}, Case{"0.01", 1, 1}, Case{"0.01", 101, 2}, Case{"0.5", 3, 2},
              Case{"1", 17, 17}, Case{"1e-300", 50, 1}, Case{"0.999999", 10, 10}}) {
            AnyModel m(group, {{DDP_F32, c.count}}, true);
            m.context.use_hook("topk", std::string("min_elements=0,ratio=") + c.ratio);
            m.context.commit();
            m.step([&](int) { return Numbers(static_cast<std::size_t>(c.count), 1); });
            const Numbers result = m.numbers(0);
            EXPECT_EQ(std::count(result.begin(), result.end(), 1), static_cast<std::ptrdiff_t>(c.k))
                << c.ratio;
        }
    });
}

class TopKEverything : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ViewAndCopy, TopKEverything, testing::Bool());

TEST_P(TopKEverything, EqualsNoHookBitForBit) {
    const std::vector<AnyParam> params{{DDP_F32, 3000}, {DDP_F16, 700}, {DDP_F64, 1025},
                                       {DDP_F32, 1},    {DDP_BF16, 65}, {DDP_I32, 9},
                                       {DDP_C64, 12},   {DDP_F32, 0}};
    for (const bool mean : {true, false})
        for (int world = 1; world <= 4; ++world)
            on_ranks({world}, [&](int rank, ddp_group* group) {
                auto options = ddp::Context::defaults();
                options.reduction = mean ? DDP_REDUCTION_MEAN : DDP_REDUCTION_SUM;
                AnyModel plain(group, params, GetParam(), options),
                    hooked(group, params, GetParam(), options);
                hooked.context.use_hook("topk", "ratio=1,min_elements=0");
                plain.context.commit();
                hooked.context.commit();
                for (int s = 0; s < 3; ++s) {
                    for (AnyModel* m : {&plain, &hooked})
                        m->step([&](int i) { return some_numbers(m->param(i), rank, s, i); });
                    EXPECT_TRUE(plain.bytes() == hooked.bytes())
                        << "world " << world << " step " << s;
                }
            });
}

// A gradient, and then none: every element arrives once, the larger before the smaller.
TEST(TopKFeedback, EveryElementArrivesOnce) {
    for (const ddp_dtype dtype : {DDP_F16, DDP_F32, DDP_F64})
        on_ranks({2}, [dtype](int, ddp_group* group) {
            AnyModel m(group, {{dtype, 200}}, true);
            m.context.use_hook("topk", "ratio=0.1,min_elements=0");
            m.context.commit();
            Numbers values(200), arrived(200);
            for (std::size_t k = 0; k < 200; ++k)
                values[k] = (k % 2 ? 1.0 : -1.0) * static_cast<double>(k + 1);
            for (int s = 0; s < 12; ++s) {
                m.step([&](int) { return s == 0 ? values : Numbers(200); });
                const Numbers result = m.numbers(0);
                for (std::size_t k = 0; k < 200; ++k) {
                    const bool due = s == 9 - static_cast<int>(k) / 20;
                    EXPECT_EQ(result[k], due ? values[k] : 0) << "step " << s << " element " << k;
                    arrived[k] += result[k];
                }
            }
            EXPECT_EQ(arrived, values);
        });
}

TEST(TopKFeedback, LosesNothing) {
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const bool varying : {true, false})
            expect_nothing_is_lost(dtype, 3, varying, 30, "topk", "min_elements=100,ratio=0.1");
}

// No element waits for ever: what is kept stays below a bound.
TEST(TopKFeedback, KeepsNoMoreAfterMoreSteps) {
    for (const bool varying : {true, false})
        for (const int steps : {30, 300})
            EXPECT_LT(expect_nothing_is_lost(DDP_F64, 2, varying, steps, "topk",
                                             "min_elements=100,ratio=0.1"),
                      40);
}

TEST(TopKSize, EightBytesAKeptElement) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        AnyModel m(group, {{DDP_F32, 100'000}, {DDP_F32, 1023}}, true);
        m.context.use_hook("topk");
        m.context.commit();
        m.step([&](int i) { return some_numbers(m.param(i), rank, 0); });
        EXPECT_EQ(m.sent_bytes(), 8u + 1000 * 8 + 1023 * 4) << "the small one is sent as it is";
    });
}

}  // namespace topk_test
