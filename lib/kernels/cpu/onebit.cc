// 1 bit an element: whether it is positive. The positive ones become their mean, and so do the
// others.
//
// The sums and the bits of a block are compiled for every instruction set and chosen at run time.
// The order of the sums is that of codec_arithmetic.h, whatever the width of the vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/onebit.cc"
// The order of these two matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/cpu/onebit.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/arithmetic.h"
#include "kernels/codec_arithmetic.h"

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> load_double(D, const double* x) {
    return hn::LoadU(D(), x);
}
template <class D>
HWY_INLINE hn::Vec<D> load_double(D d, const float* x) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), x));
}

// n: a multiple of the number of lanes.
template <class Real>
HWY_INLINE void add_full_rows(const Real* x, std::size_t n, double* positive, double* other) {
    const hn::ScalableTag<double> d;
    const auto zero = hn::Zero(d);
    for (std::size_t lane = 0; lane < codec::kLanes; lane += hn::Lanes(d)) {
        auto above = zero, below = zero;
        for (std::size_t i = lane; i < n; i += codec::kLanes) {
            const auto v = load_double(d, x + i);
            above = hn::Add(above, hn::Max(v, zero));
            below = hn::Add(below, hn::Min(v, zero));
        }
        hn::StoreU(above, d, positive + lane);
        hn::StoreU(below, d, other + lane);
    }
}

HWY_INLINE double fold(double* lanes) {
    for (std::size_t half = codec::kLanes / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

template <class Real>
HWY_INLINE std::uint8_t byte_of(const Real* x, std::size_t n) {
    unsigned byte = 0;
    for (std::size_t k = 0; k < n; ++k) byte |= static_cast<unsigned>(x[k] > 0) << k;
    return static_cast<std::uint8_t>(byte);
}

// Vectors of less than a byte's 8 elements, or of several bytes'.
template <class Real>
HWY_INLINE void mark(const Real* x, std::size_t n, std::uint8_t* bits) {
    const hn::ScalableTag<Real> d;
    const std::size_t lanes = hn::Lanes(d), step = std::max<std::size_t>(lanes, 8);
    const auto zero = hn::Zero(d);
    std::size_t i = 0;
    for (; i + step <= n; i += step, bits += step / 8) {
        if (lanes >= 8) {
            hn::StoreMaskBits(d, hn::Gt(hn::LoadU(d, x + i), zero), bits);
            continue;
        }
        unsigned byte = 0;
        for (std::size_t k = 0; k < 8; k += lanes) {
            std::uint8_t some[8];
            hn::StoreMaskBits(d, hn::Gt(hn::LoadU(d, x + i + k), zero), some);
            byte |= static_cast<unsigned>(some[0]) << k;
        }
        *bits = static_cast<std::uint8_t>(byte);
    }
    for (; i < n; i += 8) *bits++ = byte_of(x + i, std::min<std::size_t>(8, n - i));
}

template <class Real>
HWY_INLINE codec::Sums take_block(const Real* x, std::size_t n, std::uint8_t* bits) {
    double positive[codec::kLanes], other[codec::kLanes];
    const std::size_t full = n / codec::kLanes * codec::kLanes;
    add_full_rows(x, full, positive, other);
    for (std::size_t i = full; i < n; ++i)
        (x[i] > 0 ? positive : other)[i - full] += static_cast<double>(x[i]);
    mark(x, n, bits);
    std::uint64_t positives = 0;
    for (std::size_t i = 0; i < (n + 7) / 8; ++i)
        positives += static_cast<std::uint64_t>(std::popcount(bits[i]));
    return {fold(positive), fold(other), positives};
}

codec::Sums block_f32(const float* x, std::size_t n, std::uint8_t* bits) {
    return take_block(x, n, bits);
}
codec::Sums block_f64(const double* x, std::size_t n, std::uint8_t* bits) {
    return take_block(x, n, bits);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {

HWY_EXPORT(block_f32);
HWY_EXPORT(block_f64);

codec::Sums onebit_sums(const float* x, std::size_t n, std::uint8_t* bits) {
    return HWY_DYNAMIC_DISPATCH(block_f32)(x, n, bits);
}
codec::Sums onebit_sums(const double* x, std::size_t n, std::uint8_t* bits) {
    return HWY_DYNAMIC_DISPATCH(block_f64)(x, n, bits);
}

namespace {

using codec::Levels;

template <class Real>
constexpr ddp_dtype kDtype = std::is_same_v<Real, double> ? DDP_F64 : DDP_F32;

// The values that four bits stand for, so that no element needs a branch.
template <class Real>
struct Table {
    Table(const Levels<Real>& levels, Real sign) {
        for (unsigned bits = 0; bits < 16; ++bits)
            for (unsigned k = 0; k < 4; ++k)
                values[bits][k] = sign * ((bits >> k) & 1 ? levels.positive : levels.other);
    }
    Real values[16][4];
};

}  // namespace

template <class Real>
bool pack_onebit(const Real* x, std::size_t n, std::byte* block) {
    auto* levels = reinterpret_cast<Levels<Real>*>(block);
    auto* bits = reinterpret_cast<std::uint8_t*>(levels + 1);
    if (first_nonfinite(x, n, kDtype<Real>) != n) {
        const Real nan = std::numeric_limits<Real>::quiet_NaN();
        *levels = {nan, nan};
        std::memset(bits, 0, (n + 7) / 8);
        return false;
    }
    *levels = codec::levels_of<Real>(onebit_sums(x, n, bits), n);
    return true;
}

template <class Real>
void add_onebit(const std::byte* block, std::size_t n, Real sign, Real* to) {
    const auto* levels = reinterpret_cast<const Levels<Real>*>(block);
    const auto* bits = reinterpret_cast<const std::uint8_t*>(levels + 1);
    const Table<Real> table(*levels, sign);
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8, ++bits) {
        const Real* low = table.values[*bits & 15];
        const Real* high = table.values[*bits >> 4];
        for (std::size_t k = 0; k < 4; ++k) to[i + k] += low[k];
        for (std::size_t k = 0; k < 4; ++k) to[i + 4 + k] += high[k];
    }
    for (std::size_t k = 0; i + k < n; ++k) to[i + k] += table.values[(*bits >> k) & 1][0];
}

template bool pack_onebit(const float*, std::size_t, std::byte*);
template bool pack_onebit(const double*, std::size_t, std::byte*);
template void add_onebit(const std::byte*, std::size_t, float, float*);
template void add_onebit(const std::byte*, std::size_t, double, double*);

}  // namespace libddp::cpu
#endif
