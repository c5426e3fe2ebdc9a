// Quantization: how far results are from the mean, and what is exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "hooks/any_model.h"
#include "support/ranks.h"

namespace quantize_test {

const std::vector<AnyParam> kParams{{DDP_F32, 3000}, {DDP_F16, 700}, {DDP_F64, 1025}, {DDP_F32, 1},
                                    {DDP_F32, 0},    {DDP_BF16, 64}, {DDP_F64, 5000}};

struct Blocks {
    const char* name;
    const char* options;
    std::size_t block;  // 0: all
};
const Blocks kBlocks[] = {{"quantize_per_tensor", "", 0},
                          {"quantize_per_channel", "", 512},
                          {"quantize_per_channel", "block=7", 7},
                          {"quantize_per_channel", "block=1", 1}};

// By how much a mean (or sum) over ranks may differ at each element: half a space of each rank, and
// rounding.
Numbers bounds(const AnyParam& p, int param, int world, std::size_t block, bool mean) {
    Numbers bound(numbers_in(p));
    for (int r = 0; r < world; ++r) {
        const Numbers x = some_numbers(p, r, 0, param);
        const std::size_t size = block == 0 ? std::max<std::size_t>(1, x.size()) : block;
        for (std::size_t begin = 0; begin < x.size(); begin += size) {
            const std::size_t end = std::min(begin + size, x.size());
            double low = 0, high = 0;
            for (std::size_t k = begin; k < end; ++k)
                low = std::min(low, x[k]), high = std::max(high, x[k]);
            for (std::size_t k = begin; k < end; ++k)
                bound[k] +=
                    (high - low) * (1.0 / 510 + 4 * rounding_of(p.dtype)) / (mean ? world : 1);
        }
    }
    return bound;
}

Numbers exact(const AnyParam& p, int param, int world, bool mean) {
    Numbers sum(numbers_in(p));
    for (int r = 0; r < world; ++r) {
        const Numbers x = some_numbers(p, r, 0, param);
        for (std::size_t k = 0; k < x.size(); ++k) sum[k] += mean ? x[k] / world : x[k];
    }
    return sum;
}

class Quantize : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ViewAndCopy, Quantize, testing::Bool());

TEST_P(Quantize, ErrorIsAtMostHalfASpaceOfEachRank) {
    for (const auto& blocks : kBlocks)
        for (const bool mean : {true, false})
            for (int world = 1; world <= 4; ++world) {
                std::vector<Bytes> results(static_cast<std::size_t>(world));
                on_ranks({world}, [&](int rank, ddp_group* group) {
                    auto options = ddp::Context::defaults();
                    options.reduction = mean ? DDP_REDUCTION_MEAN : DDP_REDUCTION_SUM;
                    AnyModel m(group, kParams, GetParam(), options);
                    m.context.use_hook(blocks.name, blocks.options);
                    m.context.commit();
                    for (int s = 0; s < 2; ++s) {
                        m.step([&](int i) { return some_numbers(m.param(i), rank, 0, i); });
                        for (int i = 0; i < m.count(); ++i) {
                            const Numbers result = m.numbers(i),
                                          right = exact(m.param(i), i, world, mean);
                            const Numbers bound = bounds(m.param(i), i, world, blocks.block, mean);
                            for (std::size_t k = 0; k < result.size(); ++k)
                                ASSERT_LE(std::fabs(result[k] - right[k]), bound[k])
                                    << blocks.name << " " << blocks.options << " world " << world
                                    << " parameter " << i << " element " << k << ": " << result[k]
                                    << " for " << right[k];
                        }
                    }
                    results[static_cast<std::size_t>(rank)] = m.bytes();
                });
                for (const auto& other : results)
                    EXPECT_TRUE(other == results[0]) << "ranks differ";
            }
}

// The gradient of each rank goes through the hook in a world of one; the mean of two equal ranks is
// the same.
template <class T>
void expect_exact(ddp_dtype dtype, const std::vector<T>& values) {
    on_ranks({2}, [&](int, ddp_group* group) {
        AnyModel m(group, {{dtype, static_cast<std::int64_t>(values.size())}}, true);
        m.context.use_hook("quantize_per_tensor");
        m.context.commit();
        m.step([&](int) { return Numbers(values.begin(), values.end()); });
        EXPECT_EQ(m.numbers(0), Numbers(values.begin(), values.end()));
    });
}

TEST(QuantizeExact, EqualElementsAndZeros) {
    for (const double c :
         {0.0, 1.0, -1.0, 0.1f + 0.0, -3.7f + 0.0, 1e-30f + 0.0, 65504.0, 1e38f + 0.0}) {
        expect_exact<double>(DDP_F32, std::vector<double>(37, c));
        expect_exact<double>(DDP_F64, std::vector<double>(37, c));
        // The ends of a range from 0, and zeros in it.
        expect_exact<double>(DDP_F32, {0, c, 0, c, c, 0});
    }
    expect_exact<double>(DDP_F64, std::vector<double>(5, 1e-300));
    expect_exact<double>(DDP_F64, std::vector<double>(5, -1e300));
    expect_exact<double>(DDP_F16, std::vector<double>(5, 0.333251953125));
}

// A zero is a zero, or nothing would ever stop where most gradients are zero.
TEST(QuantizeExact, ZerosAmongOthers) {
    on_ranks({3}, [](int rank, ddp_group* group) {
        AnyModel m(group, {{DDP_F32, 1000}}, true);
        m.context.use_hook("quantize_per_tensor");
        m.context.commit();
        Numbers values(1000);
        values[17] = 0.31f * static_cast<float>(rank + 1);
        values[990] = -0.87f;
        m.step([&](int) { return values; });
        const Numbers result = m.numbers(0);
        for (std::size_t k = 0; k < result.size(); ++k)
            EXPECT_TRUE(values[k] != 0 || result[k] == 0) << k << ": " << result[k];
    });
}

TEST(QuantizeExact, RangesThatOverflowOrAreTiny) {
    constexpr double most = std::numeric_limits<float>::max(),
                     least = std::numeric_limits<float>::denorm_min();
    on_ranks({1}, [&](int, ddp_group* group) {
        AnyModel m(group, {{DDP_F32, 4}, {DDP_F32, 4}, {DDP_F32, 2}, {DDP_F64, 3}}, true);
        m.context.use_hook("quantize_per_tensor");
        m.context.commit();
        const std::vector<Numbers> values{{0.9 * most, -0.9 * most, 0, 0.3 * most},
                                          {1000 * least, -500 * least, 0, least},
                                          {least, 0},
                                          {1e-310, -1e-310, 0}};
        m.step([&](int i) { return values[static_cast<std::size_t>(i)]; });
        for (int i = 0; i < m.count(); ++i) {
            const Numbers& right = values[static_cast<std::size_t>(i)];
            const auto [low, high] = std::minmax_element(right.begin(), right.end());
            const Numbers result = m.numbers(i);
            for (std::size_t k = 0; k < right.size(); ++k)
                EXPECT_LE(std::fabs(result[k] - right[k]), *high / 509 - *low / 509 + 2 * least)
                    << i << " " << k;
        }
    });
}

TEST(QuantizeSize, OneByteAnElementAndTwoNumbersABlock) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        for (const auto& [name, bytes] : std::vector<std::pair<const char*, std::uint64_t>>{
                 {"quantize_per_tensor", 8 + 8 + 102'400},
                 {"quantize_per_channel", 8 + 200 * 8 + 102'400}}) {
            AnyModel m(group, {{DDP_F32, 102'400}}, true);
            m.context.use_hook(name);
            m.context.commit();
            m.step([&](int i) { return some_numbers(m.param(i), rank, 0); });
            EXPECT_EQ(m.sent_bytes(), bytes);
        }
    });
}

}  // namespace quantize_test
