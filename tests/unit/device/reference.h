// Plain arithmetic that the kernels are compared with: slow, obvious, and independent of them.
#pragma once

#include <hwy/targets.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ddp/types.h"

namespace libddp::reference {

template <class T>
constexpr ddp_dtype kDtype = sizeof(T) == 4 ? DDP_F32 : DDP_F64;

inline double f16_value(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 31) return mantissa ? std::nan("") : sign * INFINITY;
    return sign *
           (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

// To nearest even, by searching among the neighbours: nearbyint in units of the last place.
inline std::uint16_t f16_bits(double value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (std::isnan(value)) return sign | 0x7e00;
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    const int ulp = std::isinf(magnitude) || exponent < -13 ? -24 : exponent - 11;
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -ulp)), ulp);
    if (rounded >= 65536) return sign | 0x7c00;
    if (rounded == 0) return sign;
    std::frexp(rounded, &exponent);
    if (exponent < -13)
        return static_cast<std::uint16_t>(sign | static_cast<int>(std::ldexp(rounded, 24)));
    const int mantissa = static_cast<int>(std::ldexp(rounded, 11 - exponent)) - 1024;
    return static_cast<std::uint16_t>(sign | ((exponent + 14) << 10) | mantissa);
}

inline float bf16_value(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// The nearer of the two neighbours, the even one if they are equally near.
inline std::uint16_t bf16_bits(double value) {
    if (std::isnan(value)) return 0x7fc0;
    if (std::isinf(value)) return value < 0 ? 0xff80 : 0x7f80;
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (magnitude == 0) return sign;
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    const int ulp = exponent < -125 ? -133 : exponent - 8;
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -ulp)), ulp);
    if (rounded > 3.4e38) return sign | 0x7f80;
    return sign | static_cast<std::uint16_t>(
                      std::bit_cast<std::uint32_t>(static_cast<float>(rounded)) >> 16);
}

inline bool f16_is_nan(std::uint16_t bits) {
    return (bits & 0x7fff) > 0x7c00;
}
inline bool bf16_is_nan(std::uint16_t bits) {
    return (bits & 0x7fff) > 0x7f80;
}

// Runs body() once for every instruction set that this build contains and this machine can run.
template <class Body>
void for_each_target(Body body) {
    for (auto target : hwy::SupportedAndGeneratedTargets()) {
        hwy::SetSupportedTargetsForTest(target);
        body(hwy::TargetName(target));
    }
    hwy::SetSupportedTargetsForTest(0);
}

}  // namespace libddp::reference
