// Values of every kind for comparisons of bits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/cuda/tables.h"
#include "kernels/dtype.h"

namespace libddp::testing_cuda {

inline const std::vector<ddp_dtype> kAllTypes = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_I32,
                                                 DDP_I64, DDP_U8,   DDP_C64, DDP_C128};

// Random numbers of all magnitudes that the type has, some zeros, infinities and NaNs.
inline std::vector<std::byte> random_values(ddp_dtype dtype, std::size_t count,
                                            std::mt19937& random) {
    std::vector<std::byte> bytes(count * dtype_size(dtype));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    if (!is_floating(dtype)) return bytes;
    // Random bits have random exponents. Among every few one of a usual size.
    const ddp_dtype part = cuda::part_of(dtype);
    const std::size_t numbers = bytes.size() / dtype_size(part);
    std::vector<double> usual(numbers);
    for (auto& value : usual) value = std::uniform_real_distribution<double>(-4, 4)(random);
    std::vector<std::byte> converted(bytes.size());
    cpu::convert(converted.data(), part, usual.data(), DDP_F64, numbers);
    for (std::size_t i = 0; i < numbers; ++i)
        if (random() % 4 != 0)
            std::memcpy(bytes.data() + i * dtype_size(part),
                        converted.data() + i * dtype_size(part), dtype_size(part));
    return bytes;
}

// Whether the bits are equal; any NaN is as good as another.
inline ::testing::AssertionResult same(const std::byte* actual, const std::byte* expected,
                                       std::size_t count, ddp_dtype dtype) {
    const ddp_dtype part = cuda::part_of(dtype);
    const std::size_t size = dtype_size(part), numbers = count * dtype_size(dtype) / size;
    for (std::size_t i = 0; i < numbers; ++i) {
        if (std::memcmp(actual + i * size, expected + i * size, size) == 0) continue;
        double values[2] = {0, 0};
        if (is_floating(dtype)) {
            cpu::convert(&values[0], DDP_F64, actual + i * size, part, 1);
            cpu::convert(&values[1], DDP_F64, expected + i * size, part, 1);
            if (std::isnan(values[0]) && std::isnan(values[1])) continue;
        }
        return ::testing::AssertionFailure() << "number " << i << " of " << numbers << ": "
                                             << values[0] << " and not " << values[1];
    }
    return ::testing::AssertionSuccess();
}

}  // namespace libddp::testing_cuda
