// The arithmetic of the codecs of codec.h, shared by the CPU and by kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/everywhere.h"

namespace libddp::codec {

LIBDDP_EVERYWHERE std::uint64_t divide_up(std::uint64_t count, std::uint64_t by) {
    return (count + by - 1) / by;
}

// 1-BIT
//
// The sums over a block are in double, so that the mean of many f32 is right, and in an order that
// suits vectors of a CPU and threads of a GPU alike. Lane l adds up elements l, l + kLanes, l + 2
// kLanes, ..., and then lanes are added in halves: l + 64 to l, then l + 32 to l, and so on.

inline constexpr std::uint32_t kLanes = 128;
inline constexpr std::uint64_t kMostOneBitBlock = 1024;  // elements

struct Sums {
    double positive = 0, other = 0;
    std::uint64_t positives = 0;  // how many
};

// The head of a block.
template <class Real>
struct Levels {
    Real positive, other;
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
