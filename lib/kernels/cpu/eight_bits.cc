// Blocks of numbers of 8 bits. The loops are compiled for every instruction set and chosen at run
// time. Those over elements are plain C++ without branches, of which the compiler makes vectors, so
// that they do what kernels do.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/eight_bits.cc"
// The order of these two matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/cpu/eight_bits.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/codec_arithmetic.h"

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu::eight_bits {
namespace HWY_NAMESPACE {

namespace bits8 = libddp::eight_bits;
namespace hn = hwy::HWY_NAMESPACE;
using bits8::kGroup;
using bits8::kTogether;

using D32 = hn::CappedTag<std::uint32_t, kTogether>;
using V32 = hn::Vec<D32>;

// The upper halves of products of 32 bits; `low` becomes the lower ones.
HWY_INLINE V32 multiply(V32 a, V32 b, V32& low) {
    const D32 d;
    low = hn::Mul(a, b);
#if HWY_TARGET == HWY_SCALAR
    const std::uint64_t product = std::uint64_t{hn::GetLane(a)} * hn::GetLane(b);
    return hn::Set(d, static_cast<std::uint32_t>(product >> 32));
#else
    const hn::Repartition<std::uint64_t, D32> d64;
    const auto even = hn::MulEven(a, b);
    const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
    return hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
#endif
}

// Draws for a group, in the order of its elements: Philox4x32-10 of 16 counters.
HWY_INLINE void draw_group(const bits8::Draws& draws, std::uint32_t group, std::uint32_t* words) {
    const D32 d;
    const V32 m0 = hn::Set(d, PHILOX_M4x32_0), m1 = hn::Set(d, PHILOX_M4x32_1);
    for (std::uint32_t lane = 0; lane < kTogether;
         lane += static_cast<std::uint32_t>(hn::Lanes(d))) {
        V32 x0 = hn::Iota(d, group * kTogether + lane);
        V32 x1 = hn::Set(d, static_cast<std::uint32_t>(draws.first));
        V32 x2 = hn::Set(d, static_cast<std::uint32_t>(draws.first >> 32) ^
                                (draws.rank << 16 | draws.rank >> 16));
        V32 x3 = hn::Set(d, draws.param);
        auto key0 = static_cast<std::uint32_t>(draws.step),
             key1 = static_cast<std::uint32_t>(draws.step >> 32);
        for (int round = 0; round < 10; ++round) {
            V32 low0, low1;
            const V32 high0 = multiply(x0, m0, low0), high1 = multiply(x2, m1, low1);
            x0 = hn::Xor(hn::Xor(high1, x1), hn::Set(d, key0));
            x1 = low1;
            x2 = hn::Xor(hn::Xor(high0, x3), hn::Set(d, key1));
            x3 = low0;
            key0 += PHILOX_W32_0;
            key1 += PHILOX_W32_1;
        }
        hn::StoreU(x0, d, words + lane);
        hn::StoreU(x1, d, words + kTogether + lane);
        hn::StoreU(x2, d, words + 2 * kTogether + lane);
        hn::StoreU(x3, d, words + 3 * kTogether + lane);
    }
}

template <class Real>
HWY_INLINE codec::Bits<Real> largest_bits(const Real* x, std::size_t n) {
    using Bits = codec::Bits<Real>;
    constexpr std::size_t kLanes = 32;
    Bits most[kLanes]{};
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const Bits bits = codec::magnitude(x[i + lane]);
            most[lane] = bits > most[lane] ? bits : most[lane];
        }
    for (; i < n; ++i) most[0] = std::max(most[0], codec::magnitude(x[i]));
    return *std::max_element(most, most + kLanes);
}

template <class Format, class Real>
HWY_INLINE void write_codes(const Real* x, std::size_t n, Real largest, std::uint8_t* codes) {
    for (std::size_t i = 0; i < n; ++i) codes[i] = bits8::code_of<Format>(x[i], largest, 0, false);
}

template <class Format, class Real>
HWY_INLINE void draw_codes(const bits8::Draws& draws, const Real* x, std::size_t n, Real largest,
                           std::uint8_t* codes) {
    std::uint32_t words[kGroup];
    for (std::size_t begin = 0; begin < n; begin += kGroup) {
        draw_group(draws, static_cast<std::uint32_t>(begin / kGroup), words);
        const std::size_t here = std::min<std::size_t>(kGroup, n - begin);
        for (std::size_t i = 0; i < here; ++i)
            codes[begin + i] = bits8::code_of<Format>(x[begin + i], largest, words[i], true);
    }
}

template <class Format, class Real>
HWY_INLINE void add_values(const std::uint8_t* codes, std::size_t n, Real largest, Real* to) {
    for (std::size_t i = 0; i < n; ++i) to[i] += bits8::value_of<Format>(codes[i], largest);
}

template <class Real>
HWY_INLINE bool pack_block(const Rounding& rounding, const Real* x, std::size_t n,
                           std::byte* block) {
    const codec::Bits<Real> bits = largest_bits(x, n);
    Real largest;
    std::memcpy(&largest, &bits, sizeof largest);
    const bool finite = codec::is_finite(largest);
    if (!finite) largest = std::numeric_limits<Real>::quiet_NaN();
    std::memcpy(block, &largest, sizeof largest);
    auto* codes = reinterpret_cast<std::uint8_t*>(block + sizeof largest);
    if (!(largest > 0)) {
        std::memset(codes, 0, n);
        return finite;
    }
    const auto write = [&]<class Format>(Format) {
        if (rounding.stochastic)
            draw_codes<Format>(rounding.draws, x, n, largest, codes);
        else
            write_codes<Format>(x, n, largest, codes);
    };
    switch (rounding.kind) {
        case DDP_CODEC_INT8:
            write(bits8::Int8());
            break;
        case DDP_CODEC_E4M3:
            write(bits8::E4M3());
            break;
        default:
            write(bits8::E5M2());
    }
    return true;
}

template <class Real>
HWY_INLINE void add_block(ddp_codec_kind kind, const std::byte* block, std::size_t n, Real sign,
                          Real* to) {
    Real largest;
    std::memcpy(&largest, block, sizeof largest);
    largest *= sign;
    const auto* codes = reinterpret_cast<const std::uint8_t*>(block + sizeof largest);
    switch (kind) {
        case DDP_CODEC_INT8:
            return add_values<bits8::Int8>(codes, n, largest, to);
        case DDP_CODEC_E4M3:
            return add_values<bits8::E4M3>(codes, n, largest, to);
        default:
            return add_values<bits8::E5M2>(codes, n, largest, to);
    }
}

bool pack_f32(const Rounding& rounding, const float* x, std::size_t n, std::byte* block) {
    return pack_block(rounding, x, n, block);
}
bool pack_f64(const Rounding& rounding, const double* x, std::size_t n, std::byte* block) {
    return pack_block(rounding, x, n, block);
}
void add_f32(ddp_codec_kind kind, const std::byte* block, std::size_t n, float sign, float* to) {
    add_block(kind, block, n, sign, to);
}
void add_f64(ddp_codec_kind kind, const std::byte* block, std::size_t n, double sign, double* to) {
    add_block(kind, block, n, sign, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu::eight_bits
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu::eight_bits {

HWY_EXPORT(pack_f32);
HWY_EXPORT(pack_f64);
HWY_EXPORT(add_f32);
HWY_EXPORT(add_f64);

template <>
bool pack(const Rounding& rounding, const float* x, std::size_t n, std::byte* block) {
    return HWY_DYNAMIC_DISPATCH(pack_f32)(rounding, x, n, block);
}
template <>
bool pack(const Rounding& rounding, const double* x, std::size_t n, std::byte* block) {
    return HWY_DYNAMIC_DISPATCH(pack_f64)(rounding, x, n, block);
}
template <>
void add(ddp_codec_kind kind, const std::byte* block, std::size_t n, float sign, float* to) {
    HWY_DYNAMIC_DISPATCH(add_f32)(kind, block, n, sign, to);
}
template <>
void add(ddp_codec_kind kind, const std::byte* block, std::size_t n, double sign, double* to) {
    HWY_DYNAMIC_DISPATCH(add_f64)(kind, block, n, sign, to);
}

}  // namespace libddp::cpu::eight_bits
#endif
