// How elements lie in memory and what they are while a kernel computes with them. Plain C++ can
// include this file, so that a test runs on the CPU what kernels run; only the instructions that
// round f32 to 16 bits are the GPU's own there.
#pragma once

#include <cstdint>
#include <cstring>

#include "ddp/types.h"
#include "kernels/everywhere.h"
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace libddp::cuda {

template <class To, class From>
LIBDDP_EVERYWHERE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

LIBDDP_EVERYWHERE bool is_nan(float x) {
    return x != x;
}
LIBDDP_EVERYWHERE bool is_nan(double x) {
    return x != x;
}

template <class T>
LIBDDP_EVERYWHERE T quiet_nan() {
    if constexpr (sizeof(T) == 8)
        return bits_as<T>(std::uint64_t{0x7ff8} << 48);
    else
        return bits_as<T>(0x7fc00000u);
}

// To nearest even. A NaN stays one; which, is not said.
LIBDDP_EVERYWHERE std::uint16_t f32_to_bf16(float value) {
#if defined(__CUDA_ARCH__)
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
#else
    const auto bits = bits_as<std::uint32_t>(value);
    if (is_nan(value)) return static_cast<std::uint16_t>((bits | 0x400000u) >> 16);
    return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

LIBDDP_EVERYWHERE float bf16_to_f32(std::uint16_t bits) {
    return bits_as<float>(static_cast<std::uint32_t>(bits) << 16);
}

// To nearest even. A NaN stays one; which, is not said.
LIBDDP_EVERYWHERE std::uint16_t f32_to_f16(float value) {
#if defined(__CUDA_ARCH__)
    return __half_as_ushort(__float2half_rn(value));
#else
    const auto bits = bits_as<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t sign = (bits ^ magnitude) >> 16;
    std::uint32_t result;
    if (magnitude > 0x7f800000u) {
        result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 143u << 23) {
        result = 0x7c00u;  // 2^16 and more: infinity
    } else if (magnitude < 113u << 23) {
        // Subnormal: adding 0.5 puts its last bit where the adder rounds, to nearest even.
        result = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5f) - (126u << 23);
    } else {
        result = (magnitude + 0xfffu - (112u << 23) + ((magnitude >> 13) & 1u)) >> 13;
    }
    return static_cast<std::uint16_t>(result | sign);
#endif
}

LIBDDP_EVERYWHERE float f16_to_f32(std::uint16_t half) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(half));
#else
    const std::uint32_t magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
    if (magnitude >= 0x7c00u)
        return bits_as<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x400u) return bits_as<float>(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return bits_as<float>(sign | bits_as<std::uint32_t>(subnormal));
#endif
}

// Rounds to f32 so that rounding once more, to 16 bits, gives what one rounding would have given:
// truncated, with the last bit set if anything was lost.
LIBDDP_EVERYWHERE float round_to_odd(double value) {
    const float nearest = static_cast<float>(value);
    const double back = nearest;
    if (back == value || is_nan(value)) return nearest;
    auto bits = bits_as<std::uint32_t>(nearest);
    if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) --bits;
    return bits_as<float>(bits | 1u);
}

template <class T>
struct Complex {
    T re, im;
};

// The factor of a value at the end. Integers are divided, truncating toward zero.
struct Factor {
    double scale = 1;
    std::int64_t divisor = 1;
};

LIBDDP_EVERYWHERE float scaled(float x, const Factor& factor) {
    return x * static_cast<float>(factor.scale);
}
LIBDDP_EVERYWHERE double scaled(double x, const Factor& factor) {
    return x * factor.scale;
}
LIBDDP_EVERYWHERE std::int64_t scaled(std::int64_t x, const Factor& factor) {
    return x / factor.divisor;
}
LIBDDP_EVERYWHERE std::int32_t scaled(std::int32_t x, const Factor& factor) {
    return static_cast<std::int32_t>(x / factor.divisor);
}
LIBDDP_EVERYWHERE std::uint8_t scaled(std::uint8_t x, const Factor& factor) {
    return static_cast<std::uint8_t>(x / factor.divisor);
}
template <class T>
LIBDDP_EVERYWHERE Complex<T> scaled(Complex<T> x, const Factor& factor) {
    return {scaled(x.re, factor), scaled(x.im, factor)};
}

// Each format: Stored lies in memory, arithmetic is done in Compute.
struct F16 {
    using Stored = std::uint16_t;
    using Compute = float;
    static LIBDDP_EVERYWHERE Compute load(Stored x) { return f16_to_f32(x); }
    static LIBDDP_EVERYWHERE Stored store(float x) { return f32_to_f16(x); }
    static LIBDDP_EVERYWHERE Stored store(double x) { return f32_to_f16(round_to_odd(x)); }
};
struct BF16 {
    using Stored = std::uint16_t;
    using Compute = float;
    static LIBDDP_EVERYWHERE Compute load(Stored x) { return bf16_to_f32(x); }
    static LIBDDP_EVERYWHERE Stored store(float x) { return f32_to_bf16(x); }
    static LIBDDP_EVERYWHERE Stored store(double x) { return f32_to_bf16(round_to_odd(x)); }
};
template <class T>
struct Plain {
    using Stored = T;
    using Compute = T;
    static LIBDDP_EVERYWHERE Compute load(Stored x) { return x; }
    static LIBDDP_EVERYWHERE Stored store(Compute x) { return x; }
};
struct F32 : Plain<float> {
    static LIBDDP_EVERYWHERE Stored store(float x) { return x; }
    static LIBDDP_EVERYWHERE Stored store(double x) { return static_cast<float>(x); }
};
struct F64 : Plain<double> {};
struct I32 : Plain<std::int32_t> {};
struct I64 : Plain<std::int64_t> {};
struct U8 : Plain<std::uint8_t> {};
struct C64 : Plain<Complex<float>> {};
struct C128 : Plain<Complex<double>> {};
// Bits that nobody computes with.
struct Bits16 : Plain<std::uint16_t> {};

// Calls use(format) with that of f16, bf16, f32 or f64.
template <class Use>
void with_floating(ddp_dtype dtype, Use use) {
    switch (dtype) {
        case DDP_F16:
            return use(F16());
        case DDP_BF16:
            return use(BF16());
        case DDP_F32:
            return use(F32());
        default:
            return use(F64());
    }
}

}  // namespace libddp::cuda
