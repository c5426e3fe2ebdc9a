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

// Small integers in every type: sums and products of up to 5 are exact, so that results are
// compared as bytes.
inline Bytes numbers(std::size_t count, ddp_dtype dtype, int seed) {
    constexpr std::size_t kPeriod = 1009;
    std::mt19937 random(static_cast<unsigned>(seed));
    const std::size_t size = dtype_size(dtype);
    const std::size_t drawn = std::min(count, kPeriod);
    Bytes bytes(count * size + 1);
    std::vector<double> values(drawn * 2);
    for (double& v : values)
        v = dtype == DDP_U8 ? static_cast<double>(random() % 3)
                            : static_cast<double>(random() % 5) - 2;
    if (is_floating(dtype))
        cpu::convert(bytes.data(), dtype, values.data(), is_complex(dtype) ? DDP_C128 : DDP_F64,
                     drawn);
    else
        for (std::size_t i = 0; i < drawn; ++i) {
            const auto value = static_cast<std::int64_t>(values[i]);
            std::memcpy(bytes.data() + i * size, &value, size);  // little-endian: the low bytes
        }
    repeat(bytes, drawn * size, count * size);
    return bytes;
}

inline Bytes reduced(const std::vector<Bytes>& inputs, std::size_t count, ddp_dtype dtype,
                     ddp_reduce_op op, double scale) {
    std::vector<const void*> pointers;
    for (const Bytes& input : inputs) pointers.push_back(input.data());
    Bytes out(count * dtype_size(dtype) + 1);
    cpu::reduce(out.data(), pointers.data(), pointers.size(), count, dtype, op, scale);
    return out;
}

// Equal but for the sign of zeros, which in a product of complex numbers depends on the order of
// the factors. Ring and bcube have an order of their own.
inline bool equal(const Bytes& a, const Bytes& b, std::size_t count, ddp_dtype dtype) {
    const Bytes zeros(a.size());
    const auto plus_zero = [&](const Bytes& x) {
        return reduced({x, zeros}, count, dtype, DDP_SUM, 1);
    };
    return a.size() == b.size() && (!is_floating(dtype) ? a == b : plus_zero(a) == plus_zero(b));
}

}  // namespace libddp::testing_backend
