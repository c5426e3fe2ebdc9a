// Elements of gradients: small integers, which every dtype holds exactly, also when ranks and steps
// have added them up; and their bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "property/case.h"

namespace property {

// The elements of a gradient: one integer each, two where it is complex.
using Values = std::vector<std::int64_t>;

inline bool is_complex(ddp_dtype dtype) {
    return dtype == DDP_C64 || dtype == DDP_C128;
}
inline bool is_integer(ddp_dtype dtype) {
    return dtype == DDP_I32 || dtype == DDP_I64 || dtype == DDP_U8;
}
inline std::size_t components(const Param& p) {
    return static_cast<std::size_t>(p.count) * (is_complex(p.dtype) ? 2 : 1);
}

// Stands for memory that nobody computed, filled with a byte that each rank has for itself. A
// floating-point number of such bytes is not finite or so large that it shows in every sum.
constexpr std::int64_t kPoison = 1'000'000;
inline std::int64_t poison(std::size_t rank) {
    return kPoison + static_cast<std::int64_t>(rank);
}

// The gradient of a rank for one component in one step. Floating-point means must come out as
// integers, so their inputs are multiples of what is divided by; sums of integers need not divide
// evenly. The bounds keep every sum over 4 ranks and 5 steps, weights included, within 256: u8
// overflows there, and bf16 has 8 bits of precision.
inline std::int64_t gradient_value(const Case& c, std::size_t step, std::size_t rank,
                                   std::size_t param, std::size_t k) {
    const std::size_t mixed = (step * 31 + rank * 17 + param * 7 + k) * 2654435761u >> 7;
    const auto draw = [mixed](std::size_t bound) {
        return static_cast<std::int64_t>(mixed % bound);
    };
    const ddp_dtype dtype = c.params[param].dtype;
    if (dtype == DDP_U8) return draw(13);
    if (is_integer(dtype)) return draw(25) - 12;
    return c.weighted() ? (draw(3) - 1) * c.divisor() : (draw(7) - 3) * c.divisor();
}

// |value| at most 2,048.
inline std::uint16_t f16_bits(std::int64_t value) {
    if (value == 0) return 0;
    const auto magnitude = static_cast<unsigned>(value < 0 ? -value : value);
    const unsigned exponent = static_cast<unsigned>(std::bit_width(magnitude)) - 1;
    const unsigned mantissa = (magnitude << 10 >> exponent) & 1023;
    return static_cast<std::uint16_t>((value < 0 ? 0x8000u : 0u) | (exponent + 15) << 10 |
                                      mantissa);
}
inline std::uint16_t bf16_bits(std::int64_t value) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >>
                                      16);
}

template <class Convert>
std::vector<std::byte> encode(const Values& values, Convert convert) {
    constexpr std::size_t size = sizeof(convert(0));
    std::vector<std::byte> bytes(values.size() * size);
    for (std::size_t k = 0; k < values.size(); ++k) {
        const auto component = convert(values[k]);
        if (values[k] >= kPoison)
            std::memset(&bytes[k * size], static_cast<int>(0xff - (values[k] - kPoison)), size);
        else
            std::memcpy(&bytes[k * size], &component, size);
    }
    return bytes;
}

template <class T>
std::vector<std::byte> encode_as(const Values& values) {
    return encode(values, [](std::int64_t value) { return static_cast<T>(value); });
}

inline std::vector<std::byte> bytes_of(const Values& values, ddp_dtype dtype) {
    switch (dtype) {
        case DDP_F16:
            return encode(values, f16_bits);
        case DDP_BF16:
            return encode(values, bf16_bits);
        case DDP_F64:
        case DDP_C128:
            return encode_as<double>(values);
        case DDP_I32:
            return encode_as<std::int32_t>(values);
        case DDP_I64:
            return encode_as<std::int64_t>(values);
        case DDP_U8:
            return encode_as<std::uint8_t>(values);
        default:
            return encode_as<float>(values);
    }
}

}  // namespace property
