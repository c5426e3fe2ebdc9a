// The arithmetic of the codecs of codec.h, shared by the CPU and by kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/everywhere.h"

namespace libddp::codec {

// Elements that share a scale or levels, in a part of `count` elements. block 0: all of them.
LIBDDP_EVERYWHERE std::uint64_t block_size(std::uint64_t block, std::uint64_t count) {
    return block == 0 || block > count ? count : block;
}
LIBDDP_EVERYWHERE std::uint64_t divide_up(std::uint64_t count, std::uint64_t by) {
    return (count + by - 1) / by;
}

// The head of each block in the packed bytes of quantize and 1-bit.
template <class Real>
struct Scale {
    Real half;  // of the range
    Real zero;  // the code that stands for 0: an integer
};
template <class Real>
struct Levels {
    Real positive, other;
};

// QUANTIZE

// Adding and subtracting this rounds to the nearest integer, without an instruction that not every
// machine has.
template <class Real>
inline constexpr Real kRound = Real{1.5} / std::numeric_limits<Real>::epsilon();

// A step is 2/255 of half the range, which, unlike the range, does not overflow.
template <class Real>
inline constexpr Real kStep = Real{2} / Real{255};
// So that the ends of a range that begins or ends at 0 are met exactly.
static_assert(255 * kStep<float> == 2 && 255 * kStep<double> == 2);

template <class Real>
LIBDDP_EVERYWHERE Real rounded(Real x) {
    return (x + kRound<Real>)-kRound<Real>;
}
// From an element to steps. Division first: a quotient by `half` would overflow for the smallest
// ranges.
template <class Real>
LIBDDP_EVERYWHERE Real steps(Real x, Real half) {
    return x / half * (Real{255} / 2);
}
// low: the least of a block's elements and 0; high: the largest.
template <class Real>
LIBDDP_EVERYWHERE Scale<Real> scale_of(Real low, Real high) {
    const Real half = high / 2 - low / 2;
    if (!(half > 0)) return {0, 0};
    return {half, rounded(steps(-low, half))};
}
// With half > 0; otherwise all codes are 0.
template <class Real>
LIBDDP_EVERYWHERE std::uint8_t code_of(Real x, const Scale<Real>& scale) {
    Real code = rounded(steps(x, scale.half)) + scale.zero;
    code = code > 0 ? code : 0;
    code = code < 255 ? code : 255;
    return static_cast<std::uint8_t>(static_cast<std::int32_t>(code));
}
template <class Real>
LIBDDP_EVERYWHERE Real value_of(std::uint8_t code, const Scale<Real>& scale) {
    return (static_cast<Real>(code) - scale.zero) * kStep<Real> * scale.half;
}

// 1-BIT
//
// The sums over a block are in double, so that the mean of many f32 is right, and in an order that
// suits vectors of a CPU and threads of a GPU alike. A block is cut into chunks. In a chunk lane l
// adds up elements l, l + kLanes, l + 2 kLanes, ..., and then lanes are added in halves: l + 64 to
// l, then l + 32 to l, and so on. Chunks are added up in just the same way.

inline constexpr std::uint32_t kLanes = 128;
inline constexpr std::uint64_t kSumChunk = 1024;

struct Sums {
    double positive = 0, other = 0;
    std::uint64_t positives = 0;  // how many

    LIBDDP_EVERYWHERE void operator+=(const Sums& more) {
        positive += more.positive;
        other += more.other;
        positives += more.positives;
    }
};

template <class Real>
inline constexpr double kMost = std::numeric_limits<Real>::max();

// Finite, although a sum of f64 may overflow.
template <class Real>
LIBDDP_EVERYWHERE Real level_of(double sum, std::uint64_t count) {
    if (count == 0) return 0;
    const double mean = sum / static_cast<double>(count);
    return static_cast<Real>(mean > kMost<Real>    ? kMost<Real>
                             : mean < -kMost<Real> ? -kMost<Real>
                                                   : mean);
}
template <class Real>
LIBDDP_EVERYWHERE Levels<Real> levels_of(const Sums& sums, std::uint64_t count) {
    return {level_of<Real>(sums.positive, sums.positives),
            level_of<Real>(sums.other, count - sums.positives)};
}

// TOP-K

template <class Real>
using Bits = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;

inline constexpr int kDigit = 11;  // bits that one look at all numbers decides on
inline constexpr std::uint32_t kDigitValues = 1u << kDigit;

// Magnitudes are in the order of their bits.
template <class Real>
LIBDDP_EVERYWHERE Bits<Real> magnitude(Real x) {
    Bits<Real> bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & (~Bits<Real>{0} >> 1);
}
template <class Real>
inline constexpr int kMagnitudeBits = 8 * static_cast<int>(sizeof(Real)) - 1;

// ANY

// Not a NaN, not an infinity.
template <class Real>
LIBDDP_EVERYWHERE bool is_finite(Real x) {
    return x - x == 0;
}

}  // namespace libddp::codec
