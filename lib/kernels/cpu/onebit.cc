// 1 bit an element: whether it is positive. The positive ones become their mean, and so do the
// others.
//
// The sums and the bits of a chunk are compiled for every instruction set and chosen at run time.
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

#include "kernels/codec_arithmetic.h"
#include "kernels/cpu/codec.h"

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
HWY_INLINE codec::Sums take_chunk(const Real* x, std::size_t n, std::uint8_t* bits) {
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

codec::Sums chunk_f32(const float* x, std::size_t n, std::uint8_t* bits) {
    return take_chunk(x, n, bits);
}
codec::Sums chunk_f64(const double* x, std::size_t n, std::uint8_t* bits) {
    return take_chunk(x, n, bits);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {

HWY_EXPORT(chunk_f32);
HWY_EXPORT(chunk_f64);

codec::Sums onebit_chunk(const float* x, std::size_t n, std::uint8_t* bits) {
    return HWY_DYNAMIC_DISPATCH(chunk_f32)(x, n, bits);
}
codec::Sums onebit_chunk(const double* x, std::size_t n, std::uint8_t* bits) {
    return HWY_DYNAMIC_DISPATCH(chunk_f64)(x, n, bits);
}

namespace {

using codec::Levels;
using codec::Sums;

// Sums of a block, whose bits it writes. Chunks are added up as the elements of a chunk are.
template <class Real>
Sums take_block(const Real* x, std::size_t count, std::uint8_t* bits) {
    if (count <= codec::kSumChunk) return onebit_chunk(x, count, bits);
    Sums lanes[codec::kLanes];
    for (std::size_t begin = 0, chunk = 0; begin < count; begin += codec::kSumChunk, ++chunk)
        lanes[chunk % codec::kLanes] += onebit_chunk(
            x + begin, std::min<std::size_t>(codec::kSumChunk, count - begin), bits + begin / 8);
    for (std::size_t half = codec::kLanes / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

template <class Real>
class OneBitCodec final : public Codec<Real> {
public:
    explicit OneBitCodec(std::size_t block) : block_(block) {}

    void pack(const Real* x, std::size_t count, std::byte* packed) const override {
        const std::size_t block = codec::block_size(block_, count);
        auto* levels = reinterpret_cast<Levels<Real>*>(packed);
        auto* bits = reinterpret_cast<std::uint8_t*>(levels + codec::divide_up(count, block));
        for (std::size_t begin = 0; begin < count; begin += block) {
            const std::size_t n = std::min(block, count - begin);
            *levels++ = codec::levels_of<Real>(take_block(x + begin, n, bits + begin / 8), n);
        }
    }

    void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n,
             Real sign, Real* to) const override {
        const std::size_t block = codec::block_size(block_, count);
        const auto* levels = reinterpret_cast<const Levels<Real>*>(packed);
        const auto* bits =
            reinterpret_cast<const std::uint8_t*>(levels + codec::divide_up(count, block));
        for (std::size_t at = begin; at < begin + n;) {
            const std::size_t end = std::min({(at / block + 1) * block, begin + n, count});
            add_block(levels[at / block], bits + at / 8, end - at, sign, to + (at - begin));
            at = end;
        }
    }

private:
    static void add_block(const Levels<Real>& levels, const std::uint8_t* bits, std::size_t n,
                          Real sign, Real* to) {
        const Table table(levels, sign);
        std::size_t i = 0;
        for (; i + 8 <= n; i += 8, ++bits) {
            const Real* low = table.values[*bits & 15];
            const Real* high = table.values[*bits >> 4];
            for (std::size_t k = 0; k < 4; ++k) to[i + k] += low[k];
            for (std::size_t k = 0; k < 4; ++k) to[i + 4 + k] += high[k];
        }
        for (std::size_t k = 0; i + k < n; ++k) to[i + k] += table.values[(*bits >> k) & 1][0];
    }

    // The values that four bits stand for, so that no element needs a branch.
    struct Table {
        Table(const Levels<Real>& levels, Real sign) {
            for (unsigned bits = 0; bits < 16; ++bits)
                for (unsigned k = 0; k < 4; ++k)
                    values[bits][k] = sign * ((bits >> k) & 1 ? levels.positive : levels.other);
        }
        Real values[16][4];
    };

    const std::size_t block_;
};

}  // namespace

template <class Real>
std::unique_ptr<const Codec<Real>> onebit_codec(const ddp_codec& codec) {
    return std::make_unique<OneBitCodec<Real>>(codec.block);
}
template std::unique_ptr<const Codec<float>> onebit_codec(const ddp_codec&);
template std::unique_ptr<const Codec<double>> onebit_codec(const ddp_codec&);

}  // namespace libddp::cpu
#endif
