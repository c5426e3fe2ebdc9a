#include "kernels/cuda/formats.h"

#include <bit>
#include <limits>

#include "unit/cuda/values.h"

namespace libddp::cuda {
namespace {

using testing_cuda::same;

template <class T>
const std::byte* bytes_of(const T& value) {
    return reinterpret_cast<const std::byte*>(&value);
}

TEST(CudaFormats, EveryValueOf16BitsAsTheCpuReadsIt) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        const auto half = static_cast<std::uint16_t>(bits);
        float expected = 0;
        cpu::convert(&expected, DDP_F32, &half, DDP_F16, 1);
        ASSERT_TRUE(same(bytes_of(f16_to_f32(half)), bytes_of(expected), 1, DDP_F32)) << bits;
        cpu::convert(&expected, DDP_F32, &half, DDP_BF16, 1);
        ASSERT_TRUE(same(bytes_of(bf16_to_f32(half)), bytes_of(expected), 1, DDP_F32)) << bits;
    }
}

// Every exponent with mantissas around what is rounded away.
TEST(CudaFormats, RoundsF32AsTheCpuDoes) {
    for (std::uint32_t upper = 0; upper < 65536; ++upper)
        for (std::uint32_t lower : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u,
                                    0x7fffu, 0x8000u, 0x8001u, 0xefffu, 0xf000u, 0xffffu}) {
            const float value = std::bit_cast<float>(upper << 16 | lower);
            std::uint16_t expected = 0;
            cpu::convert(&expected, DDP_F16, &value, DDP_F32, 1);
            ASSERT_TRUE(same(bytes_of(f32_to_f16(value)), bytes_of(expected), 1, DDP_F16)) << value;
            cpu::convert(&expected, DDP_BF16, &value, DDP_F32, 1);
            ASSERT_TRUE(same(bytes_of(f32_to_bf16(value)), bytes_of(expected), 1, DDP_BF16))
                << value;
        }
}

TEST(CudaFormats, RoundsF64Once) {
    std::mt19937 random(7);
    std::vector<double> values = {1 + 0x1p-11 + 0x1p-40,
                                  1 + 0x1p-11 - 0x1p-40,
                                  65520 - 1e-9,
                                  65520,
                                  1e300,
                                  -1e300,
                                  1e-300,
                                  0x1p-25,
                                  0x1p-25 + 0x1p-60,
                                  3.3961775e38,
                                  3.4e38,
                                  0,
                                  -0.0,
                                  INFINITY,
                                  -INFINITY};
    for (int i = 0; i < 100000; ++i)
        values.push_back(std::ldexp(std::uniform_real_distribution<double>(-2, 2)(random),
                                    static_cast<int>(random() % 320) - 160));
    for (const double value : values) {
        std::uint16_t expected = 0;
        cpu::convert(&expected, DDP_F16, &value, DDP_F64, 1);
        ASSERT_EQ(F16::store(value), expected) << value;
        cpu::convert(&expected, DDP_BF16, &value, DDP_F64, 1);
        ASSERT_EQ(BF16::store(value), expected) << value;
    }
}

}  // namespace
}  // namespace libddp::cuda
