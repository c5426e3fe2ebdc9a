#include <gtest/gtest.h>

#include <complex>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/arithmetic.h"
#include "unit/device/reference.h"
#include "util/error.h"

namespace libddp {
namespace {

using namespace reference;

std::vector<std::uint16_t> all_16_bit_values() {
    std::vector<std::uint16_t> values(65536);
    std::iota(values.begin(), values.end(), std::uint16_t{0});
    return values;
}

TEST(Convert, EveryF16ToF32AndBack) {
    const auto halves = all_16_bit_values();
    for_each_target([&](const char* target) {
        SCOPED_TRACE(target);
        std::vector<float> floats(halves.size());
        cpu::convert(floats.data(), DDP_F32, halves.data(), DDP_F16, halves.size());
        std::vector<std::uint16_t> back(halves.size());
        cpu::convert(back.data(), DDP_F16, floats.data(), DDP_F32, floats.size());
        for (std::size_t i = 0; i < halves.size(); ++i) {
            if (f16_is_nan(halves[i])) {
                ASSERT_TRUE(std::isnan(floats[i])) << i;
                ASSERT_TRUE(f16_is_nan(back[i])) << i;
            } else {
                ASSERT_EQ(floats[i], f16_value(halves[i])) << i;
                ASSERT_EQ(std::signbit(floats[i]), (i & 0x8000) != 0) << i;
                ASSERT_EQ(back[i], halves[i]);
            }
        }
    });
}

// Every f16, its midpoint with the next, and what lies one f32 step to either side of those.
TEST(Convert, F32ToF16RoundsToNearestEven) {
    std::vector<float> floats;
    for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
        const double low = f16_value(static_cast<std::uint16_t>(bits));
        const double high =
            bits == 0x7bff ? 65536 : f16_value(static_cast<std::uint16_t>(bits + 1));
        for (double value : {low, (low + high) / 2}) {
            const float f = static_cast<float>(value);
            for (float x : {std::nextafter(f, -1.0f), f, std::nextafter(f, INFINITY)}) {
                floats.push_back(x);
                floats.push_back(-x);
            }
        }
    }
    for (float x : {1e9f, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                    std::numeric_limits<float>::denorm_min(), INFINITY, -INFINITY, 5.9e-8f,
                    2.98e-8f, 65519.99f, 65520.0f})
        floats.push_back(x);
    for_each_target([&](const char* target) {
        SCOPED_TRACE(target);
        std::vector<std::uint16_t> halves(floats.size());
        cpu::convert(halves.data(), DDP_F16, floats.data(), DDP_F32, floats.size());
        for (std::size_t i = 0; i < floats.size(); ++i)
            ASSERT_EQ(halves[i], f16_bits(floats[i])) << floats[i];
    });
}

TEST(Convert, EveryBf16ToF32AndBack) {
    const auto halves = all_16_bit_values();
    for_each_target([&](const char* target) {
        SCOPED_TRACE(target);
        std::vector<float> floats(halves.size());
        cpu::convert(floats.data(), DDP_F32, halves.data(), DDP_BF16, halves.size());
        std::vector<std::uint16_t> back(halves.size());
        cpu::convert(back.data(), DDP_BF16, floats.data(), DDP_F32, floats.size());
        for (std::size_t i = 0; i < halves.size(); ++i) {
            if (bf16_is_nan(halves[i])) {
                ASSERT_TRUE(std::isnan(floats[i]));
                ASSERT_TRUE(bf16_is_nan(back[i]));
            } else {
                ASSERT_EQ(floats[i], bf16_value(halves[i]));
                ASSERT_EQ(back[i], halves[i]);
            }
        }
    });
}

TEST(Convert, F32ToBf16RoundsToNearestEven) {
    std::vector<float> floats;
    for (std::uint32_t upper = 0; upper < 0x7f80; ++upper)
        for (std::uint32_t lower : {0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            floats.push_back(std::bit_cast<float>(upper << 16 | lower));
            floats.push_back(-floats.back());
        }
    for_each_target([&](const char* target) {
        SCOPED_TRACE(target);
        std::vector<std::uint16_t> halves(floats.size());
        cpu::convert(halves.data(), DDP_BF16, floats.data(), DDP_F32, floats.size());
        for (std::size_t i = 0; i < floats.size(); ++i)
            ASSERT_EQ(halves[i], bf16_bits(floats[i])) << floats[i];
    });
}

TEST(Convert, ANanNeverBecomesAnInfinity) {
    std::vector<float> nans;
    for (std::uint32_t bits :
         {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7f80ffffu})
        for (int copies = 0; copies < 5; ++copies) nans.push_back(std::bit_cast<float>(bits));
    for_each_target([&](const char* target) {
        SCOPED_TRACE(target);
        std::vector<std::uint16_t> halves(nans.size());
        cpu::convert(halves.data(), DDP_BF16, nans.data(), DDP_F32, nans.size());
        for (auto bits : halves) EXPECT_TRUE(bf16_is_nan(bits));
        cpu::convert(halves.data(), DDP_F16, nans.data(), DDP_F32, nans.size());
        for (auto bits : halves) EXPECT_TRUE(f16_is_nan(bits));
    });
}

// 1 + 2^-11 + tiny lies just above a midpoint of f16; rounding to f32 first would land on the
// midpoint and go down.
TEST(Convert, F64RoundsOnce) {
    const std::vector<double> values = {1 + 0x1p-11 + 0x1p-40,
                                        1 + 0x1p-11 - 0x1p-40,
                                        1 + 0x1p-11,
                                        -1 - 0x1p-11 - 0x1p-40,
                                        1 + 0x1p-8 + 0x1p-40,
                                        65520 - 1e-9,
                                        65520,
                                        1e300,
                                        -1e300,
                                        1e-300,
                                        0x1p-25,
                                        0x1p-25 + 0x1p-60,
                                        0x1.8p-24 - 0x1p-60,
                                        0,
                                        -0.0,
                                        INFINITY,
                                        0x1p-133 + 0x1p-134,
                                        3.3961775e38,
                                        3.4e38};
    for_each_target([&](const char* target) {
        SCOPED_TRACE(target);
        std::vector<std::uint16_t> halves(values.size());
        cpu::convert(halves.data(), DDP_F16, values.data(), DDP_F64, values.size());
        for (std::size_t i = 0; i < values.size(); ++i)
            EXPECT_EQ(halves[i], f16_bits(values[i])) << values[i];
        cpu::convert(halves.data(), DDP_BF16, values.data(), DDP_F64, values.size());
        for (std::size_t i = 0; i < values.size(); ++i)
            EXPECT_EQ(halves[i], bf16_bits(values[i])) << values[i];
    });
}

TEST(Convert, EveryPairKeepsSmallIntegers) {
    constexpr std::size_t kCount = 1037;  // more than two blocks, and no multiple of any vector
    std::vector<double> f64(kCount);
    for (std::size_t i = 0; i < kCount; ++i) f64[i] = static_cast<double>(i % 255) - 127;
    const ddp_dtype types[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64};
    for (ddp_dtype from : types)
        for (ddp_dtype to : types) {
            std::vector<double> a(kCount), b(kCount), result(kCount);
            cpu::convert(a.data(), from, f64.data(), DDP_F64, kCount);
            cpu::convert(b.data(), to, a.data(), from, kCount);
            cpu::convert(result.data(), DDP_F64, b.data(), to, kCount);
            EXPECT_EQ(result, f64) << from << " to " << to;
        }
}

TEST(Convert, Complex) {
    const std::vector<std::complex<float>> c64 = {{1, -2}, {3.5f, 1e30f}, {-0.0f, INFINITY}};
    std::vector<std::complex<double>> c128(3);
    cpu::convert(c128.data(), DDP_C128, c64.data(), DDP_C64, 3);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(c128[i], std::complex<double>(c64[i]));
    std::vector<std::complex<float>> back(3);
    cpu::convert(back.data(), DDP_C64, c128.data(), DDP_C128, 3);
    EXPECT_EQ(back, c64);
}

TEST(Convert, RefusesWhatHasNoMeaning) {
    char memory[64] = {};
    const std::pair<ddp_dtype, ddp_dtype> pairs[] = {
        {DDP_I32, DDP_F32}, {DDP_F32, DDP_U8}, {DDP_F32, DDP_C64}, {0, DDP_F32}};
    for (auto [to, from] : pairs) {
        try {
            cpu::convert(memory, to, memory + 32, from, 1);
            FAIL() << to << " from " << from;
        } catch (const Error& error) {
            EXPECT_EQ(error.info().code, DDP_ERROR_UNSUPPORTED);
        }
    }
}

}  // namespace
}  // namespace libddp
