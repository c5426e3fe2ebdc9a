// Sums of outer products, compiled for every instruction set and chosen at run time. The order of
// the sum is that of the definition, one row after another: blocks are cut and loops nested so that
// this holds, and a multiply and an add are never fused, so the bits are the same on every machine.
// (A matrix library cuts its blocks by the size of the caches, and its sums differ from machine to
// machine.)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/outer_simd.cc"
// The order of these two matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include <algorithm>
#include <memory>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"

#ifndef LIBDDP_OUTER_SHAPE
#define LIBDDP_OUTER_SHAPE
namespace libddp::cpu {

// The arguments of outer_products.
template <class T>
struct Outer {
    T* out;
    const T *left, *right;
    std::size_t rows, n, m;
    bool add;
    T scale;
};

// Rows of the factors that are multiplied at a time, and columns of each that are packed together:
// what fits into the caches of any machine.
constexpr std::size_t kOuterDepth = 128, kOuterColumns = 256;
// The tile of `out` that is held in registers: this many rows, two vectors wide.
constexpr std::size_t kTileRows = 4;

}  // namespace libddp::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The initial value of a tile, and its factor at the end.
template <class T>
struct Ends {
    bool from_zero;
    T factor;
};

// tile = factor * (start + sum over k of a[k] * b[k]), where a has kTileRows and b two vectors of
// elements for each k.
template <class T>
HWY_INLINE void multiply_tile(T* HWY_RESTRICT tile, std::size_t stride, const T* HWY_RESTRICT a,
                              const T* HWY_RESTRICT b, std::size_t depth, const Ends<T>& ends) {
    const hn::ScalableTag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    const auto start = [&](std::size_t row, std::size_t vector) HWY_ATTR {
        return ends.from_zero ? hn::Zero(d) : hn::LoadU(d, tile + row * stride + vector * lanes);
    };
    auto c00 = start(0, 0), c01 = start(0, 1), c10 = start(1, 0), c11 = start(1, 1);
    auto c20 = start(2, 0), c21 = start(2, 1), c30 = start(3, 0), c31 = start(3, 1);
    for (std::size_t k = 0; k < depth; ++k, a += kTileRows, b += 2 * lanes) {
        const auto b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + lanes);
        const auto a0 = hn::Set(d, a[0]), a1 = hn::Set(d, a[1]), a2 = hn::Set(d, a[2]),
                   a3 = hn::Set(d, a[3]);
        c00 = hn::Add(c00, hn::Mul(a0, b0));
        c01 = hn::Add(c01, hn::Mul(a0, b1));
        c10 = hn::Add(c10, hn::Mul(a1, b0));
        c11 = hn::Add(c11, hn::Mul(a1, b1));
        c20 = hn::Add(c20, hn::Mul(a2, b0));
        c21 = hn::Add(c21, hn::Mul(a2, b1));
        c30 = hn::Add(c30, hn::Mul(a3, b0));
        c31 = hn::Add(c31, hn::Mul(a3, b1));
    }
    const auto factor = hn::Set(d, ends.factor);
    const auto store = [&](auto sum, std::size_t row, std::size_t vector) HWY_ATTR {
        hn::StoreU(hn::Mul(sum, factor), d, tile + row * stride + vector * lanes);
    };
    store(c00, 0, 0), store(c01, 0, 1), store(c10, 1, 0), store(c11, 1, 1);
    store(c20, 2, 0), store(c21, 2, 1), store(c30, 3, 0), store(c31, 3, 1);
}

// A tile at the edge of `out` is completed in memory of its own.
template <class T>
HWY_INLINE void multiply_edge(T* tile, std::size_t stride, std::size_t height, std::size_t width,
                              T* scratch, std::size_t padded, const T* a, const T* b,
                              std::size_t depth, const Ends<T>& ends) {
    std::fill_n(scratch, kTileRows * padded, T{0});
    if (!ends.from_zero)
        for (std::size_t i = 0; i < height; ++i)
            std::copy_n(tile + i * stride, width, scratch + i * padded);
    multiply_tile(scratch, padded, a, b, depth, ends);
    for (std::size_t i = 0; i < height; ++i)
        std::copy_n(scratch + i * padded, width, tile + i * stride);
}

// Columns [begin, end) of `depth` rows as strips of `width` columns, one strip after another; the
// last one with zeros.
template <class T>
HWY_INLINE void pack(T* to, const T* from, std::size_t stride, std::size_t begin, std::size_t end,
                     std::size_t width, std::size_t depth) {
    for (std::size_t i = begin; i < end; i += width) {
        const std::size_t filled = std::min(width, end - i);
        for (std::size_t k = 0; k < depth; ++k, to += width) {
            std::copy_n(from + k * stride + i, filled, to);
            std::fill(to + filled, to + width, T{0});
        }
    }
}

// All rows of `out`, of the columns that were packed.
template <class T>
HWY_INLINE void multiply_block(const Outer<T>& s, std::size_t i0, std::size_t i1, std::size_t j0,
                               std::size_t j1, const T* a, const T* b, T* scratch,
                               std::size_t depth, const Ends<T>& ends) {
    const std::size_t tile_width = 2 * hn::Lanes(hn::ScalableTag<T>());
    for (std::size_t i = i0; i < i1; i += kTileRows)
        for (std::size_t j = j0; j < j1; j += tile_width) {
            const std::size_t height = std::min(kTileRows, i1 - i),
                              width = std::min(tile_width, j1 - j);
            const T *strip_a = a + (i - i0) * depth, *strip_b = b + (j - j0) * depth;
            T* const tile = s.out + i * s.m + j;
            if (height == kTileRows && width == tile_width)
                multiply_tile(tile, s.m, strip_a, strip_b, depth, ends);
            else
                multiply_edge(tile, s.m, height, width, scratch, tile_width, strip_a, strip_b,
                              depth, ends);
        }
}

template <class T>
void outer(const Outer<T>& s) {
    const std::size_t tile_width = 2 * hn::Lanes(hn::ScalableTag<T>());
    const std::size_t packed_a = kOuterDepth * kOuterColumns;
    const std::size_t packed_b = kOuterDepth * std::max(kOuterColumns, tile_width);
    const std::unique_ptr<T[]> memory(new T[packed_a + packed_b + kTileRows * tile_width]);
    T* const a = memory.get();
    T* const b = a + packed_a;
    std::size_t k = 0;
    do {  // without rows too: then only the scale is left to do
        const std::size_t depth = std::min(kOuterDepth, s.rows - k);
        const Ends<T> ends{k == 0 && !s.add, k + depth == s.rows ? s.scale : T{1}};
        for (std::size_t i = 0; i < s.n; i += kOuterColumns) {
            const std::size_t i_end = std::min(i + kOuterColumns, s.n);
            pack(a, s.left + k * s.n, s.n, i, i_end, kTileRows, depth);
            for (std::size_t j = 0; j < s.m; j += kOuterColumns) {
                const std::size_t j_end = std::min(j + kOuterColumns, s.m);
                pack(b, s.right + k * s.m, s.m, j, j_end, tile_width, depth);
                multiply_block(s, i, i_end, j, j_end, a, b, b + packed_b, depth, ends);
            }
        }
        k += depth;
    } while (k < s.rows);
}

void outer_f32(const Outer<float>& arguments) {
    outer(arguments);
}
void outer_f64(const Outer<double>& arguments) {
    outer(arguments);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {

HWY_EXPORT(outer_f32);
HWY_EXPORT(outer_f64);

void outer_products(void* out, const void* left, const void* right, std::size_t rows, std::size_t n,
                    std::size_t m, ddp_dtype dtype, bool add, double scale) {
    const auto arguments = [&]<class T>(T* target) {
        return Outer<T>{
            target, static_cast<const T*>(left), static_cast<const T*>(right), rows, n, m,
            add,    static_cast<T>(scale)};
    };
    if (dtype == DDP_F32)
        HWY_DYNAMIC_DISPATCH(outer_f32)(arguments(static_cast<float*>(out)));
    else if (dtype == DDP_F64)
        HWY_DYNAMIC_DISPATCH(outer_f64)(arguments(static_cast<double*>(out)));
    else
        fail(DDP_ERROR_UNSUPPORTED, "outer products of elements of type ", dtype_name(dtype),
             " are not supported");
}

}  // namespace libddp::cpu
#endif
