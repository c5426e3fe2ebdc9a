// Every dtype as C++ sees it, for small integers that each of them holds exactly.
#pragma once

#include <complex>
#include <cstdint>
#include <cstring>
#include <string>

#include "ddp/ddp.h"

struct Half {
    std::uint16_t bits;
    bool operator==(const Half& other) const { return bits == other.bits; }
};
struct Brain {
    std::uint16_t bits;
    bool operator==(const Brain& other) const { return bits == other.bits; }
};

template <class T>
T element(double value) {
    return static_cast<T>(value);
}
template <>
inline std::complex<float> element(double value) {
    return {static_cast<float>(value), static_cast<float>(-value)};
}
template <>
inline std::complex<double> element(double value) {
    return {value, -value};
}
template <>
inline Brain element(double value) {
    const auto single = static_cast<float>(value);
    std::uint32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    return {static_cast<std::uint16_t>(bits >> 16)};
}
// For what binary16 holds exactly and normally: the exponent's bias changes, and 13 bits of the
// fraction are zeros.
template <>
inline Half element(double value) {
    const auto single = static_cast<float>(value);
    std::uint32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    if (value == 0) return {0};
    const std::uint32_t exponent = (bits >> 23 & 0xff) - 127 + 15;
    return {static_cast<std::uint16_t>((bits >> 31) << 15 | exponent << 10 | (bits >> 13 & 0x3ff))};
}

template <class T>
struct Dtype;
#define DDP_TEST_DTYPE(type, dtype)                 \
    template <>                                     \
    struct Dtype<type> {                            \
        static constexpr ddp_dtype value = dtype;   \
        static constexpr const char* name = #dtype; \
    }
DDP_TEST_DTYPE(Half, DDP_F16);
DDP_TEST_DTYPE(Brain, DDP_BF16);
DDP_TEST_DTYPE(float, DDP_F32);
DDP_TEST_DTYPE(double, DDP_F64);
DDP_TEST_DTYPE(std::int32_t, DDP_I32);
DDP_TEST_DTYPE(std::int64_t, DDP_I64);
DDP_TEST_DTYPE(std::uint8_t, DDP_U8);
DDP_TEST_DTYPE(std::complex<float>, DDP_C64);
DDP_TEST_DTYPE(std::complex<double>, DDP_C128);
#undef DDP_TEST_DTYPE
