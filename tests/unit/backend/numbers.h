// Messages for collectives. Drawing each number costs more than what is tested: they repeat with a
// prime period, which no part or chunk has.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp::testing_backend {

using Bytes = std::vector<char>;

// Repeats the first `period` bytes up to `end`.
inline void repeat(Bytes& bytes, std::size_t period, std::size_t end) {
    for (std::size_t done = period; done < end; done += period)
        std::memcpy(bytes.data() + done, bytes.data(), std::min(period, end - done));
}

// Normal numbers, whose sums are not exact.
inline Bytes noise(std::size_t count, ddp_dtype dtype, int seed) {
    constexpr std::size_t kPeriod = 10007;
    std::mt19937 random(static_cast<unsigned>(seed));
    std::normal_distribution<double> normal;
    std::vector<double> values(std::min(count, kPeriod));
    for (double& v : values) v = normal(random);
    const std::size_t size = dtype_size(dtype);
    Bytes bytes(count * size);
    cpu::convert(bytes.data(), dtype, values.data(), DDP_F64, values.size());
    repeat(bytes, values.size() * size, bytes.size());
    return bytes;
}

}  // namespace libddp::testing_backend
