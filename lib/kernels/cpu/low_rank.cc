// The thin products of PowerSGD, compiled for every instruction set and chosen at run time.
//
// All three are bound by memory. They go through the large matrix once, a few rows at a time, so
// that what is loaded of a thin matrix serves them all, and ask for the rows that come next:
// hardware does not follow several rows in step.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/low_rank.cc"
// The order of these three matters.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/half-inl.h"
// clang-format on

#include "kernels/low_rank.h"

#include <algorithm>

#include "kernels/dtype.h"
#include "util/error.h"

HWY_BEFORE_NAMESPACE();
namespace libddp::cpu {
namespace HWY_NAMESPACE {

// A few rows of M, from one element on.
template <class Format, bool kHasError>
struct Rows {
    using T = typename Format::Compute;
    typename Format::Stored* gradient;
    T* error;

    static Rows from(const LowRankMatrix& m, std::size_t row, std::size_t column = 0) {
        const std::size_t at = row * m.columns + column;
        return {static_cast<typename Format::Stored*>(m.gradient) + at,
                kHasError ? static_cast<T*>(m.error) + at : nullptr};
    }
    template <class D>
    HWY_INLINE hn::Vec<D> load(D d, std::size_t i) const {
        const auto value = Format::load(d, gradient + i);
        if constexpr (kHasError) return hn::Add(value, hn::LoadU(d, error + i));
        return value;
    }
    // Into the L2 cache: a few rows are more than L1 holds beside the thin matrix. Harmless past
    // the end of M.
    HWY_INLINE void prefetch(std::size_t i) const {
        __builtin_prefetch(gradient + i, 0, 2);
        if constexpr (kHasError) __builtin_prefetch(error + i, 0, 2);
    }
    template <class D>
    HWY_INLINE void store_gradient(D d, std::size_t i, hn::Vec<D> result) const {
        Format::store(d, result, gradient + i);
    }
    // Before the gradient is overwritten.
    template <class D>
    HWY_INLINE void store_error(D d, std::size_t i, hn::Vec<D> sent) const {
        hn::StoreU(hn::Sub(load(d, i), sent), d, error + i);
    }
};

// One or two rows of M times 1, 2 or 4 columns of Q. Vectors have names because those of some
// targets cannot be in arrays.
template <bool kTwoRows, int kColumns, class Source, class T>
void project_tile(const Source& m, std::size_t columns, const T* q, std::size_t q_stride, T* p,
                  std::size_t p_stride) {
    const hn::ScalableTag<T> d;
    const std::size_t lanes = hn::Lanes(d);
    auto a0 = hn::Zero(d), a1 = hn::Zero(d), a2 = hn::Zero(d), a3 = hn::Zero(d);
    auto b0 = hn::Zero(d), b1 = hn::Zero(d), b2 = hn::Zero(d), b3 = hn::Zero(d);
    std::size_t j = 0;
    for (; j + lanes <= columns; j += lanes) {
        const auto a = m.load(d, j);
        const auto b = kTwoRows ? m.load(d, columns + j) : a;
        if constexpr (kTwoRows) {
            m.prefetch(2 * columns + j);
            m.prefetch(3 * columns + j);
        }
        const auto update = [&](int k, auto& sum_a, auto& sum_b) HWY_ATTR {
            const auto factor = hn::LoadU(d, q + static_cast<std::size_t>(k) * q_stride + j);
            sum_a = hn::MulAdd(a, factor, sum_a);
            if constexpr (kTwoRows) sum_b = hn::MulAdd(b, factor, sum_b);
        };
        update(0, a0, b0);
        if constexpr (kColumns > 1) update(1, a1, b1);
        if constexpr (kColumns > 2) {
            update(2, a2, b2);
            update(3, a3, b3);
        }
    }
    const auto finish = [&](int k, auto sum, std::size_t row) HWY_ATTR {
        const hn::CappedTag<T, 1> one;
        const T* column = q + static_cast<std::size_t>(k) * q_stride;
        T total = hn::GetLane(hn::SumOfLanes(d, sum));
        for (std::size_t i = j; i < columns; ++i)
            total += hn::GetLane(m.load(one, row * columns + i)) * column[i];
        p[static_cast<std::size_t>(k) * p_stride + row] = total;
    };
    finish(0, a0, 0);
    if constexpr (kTwoRows) finish(0, b0, 1);
    if constexpr (kColumns > 1) {
        finish(1, a1, 0);
        if constexpr (kTwoRows) finish(1, b1, 1);
    }
    if constexpr (kColumns > 2) {
        finish(2, a2, 0);
        finish(3, a3, 0);
        if constexpr (kTwoRows) finish(2, b2, 1);
        if constexpr (kTwoRows) finish(3, b3, 1);
    }
}

template <bool kTwoRows, class Source, class T>
void project_rows(const Source& m, std::size_t columns, const T* q, std::size_t q_stride, T* p,
                  std::size_t p_stride, std::size_t rank) {
    std::size_t k = 0;
    for (; k + 4 <= rank; k += 4)
        project_tile<kTwoRows, 4>(m, columns, q + k * q_stride, q_stride, p + k * p_stride,
                                  p_stride);
    for (; k + 2 <= rank; k += 2)
        project_tile<kTwoRows, 2>(m, columns, q + k * q_stride, q_stride, p + k * p_stride,
                                  p_stride);
    for (; k < rank; ++k)
        project_tile<kTwoRows, 1>(m, columns, q + k * q_stride, q_stride, p + k * p_stride,
                                  p_stride);
}

struct Project {
    template <class Format, bool kHasError>
    static void run(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                    const ThinMatrix&, std::size_t rank) {
        using T = typename Format::Compute;
        const T* factor = static_cast<const T*>(q.data);
        T* out = static_cast<T*>(p.data);
        std::size_t row = 0;
        for (; row + 2 <= m.rows; row += 2)
            project_rows<true>(Rows<Format, kHasError>::from(m, row), m.columns, factor, q.stride,
                               out + row, p.stride, rank);
        if (row < m.rows)
            project_rows<false>(Rows<Format, kHasError>::from(m, row), m.columns, factor, q.stride,
                                out + row, p.stride, rank);
    }
};

// Four rows of M, or one, at the elements from j on.
template <bool kFourRows, class Source>
HWY_INLINE void prefetch_next(const Source& m, std::size_t columns, std::size_t j) {
    if constexpr (kFourRows)
        for (std::size_t row = 4; row < 8; ++row) m.prefetch(row * columns + j);
}

// A piece of Q is summed up over many rows of M in a place of its own. In Q itself the same element
// of all columns can fall into one set of the cache (columns that are a multiple of 4 KiB apart),
// and they would push each other out.
struct ProjectBack {
    static constexpr std::size_t kPieceBytes = 16384, kMostColumns = 64, kRows = 64;

    // Adds what one or four rows give to a piece of Q: `width` elements of each column.
    template <bool kFourRows, class Source, class T>
    static void add_rows(const Source& m, std::size_t columns, const T* p, std::size_t p_stride,
                         T* piece, std::size_t width, std::size_t used, std::size_t rank) {
        for_each_vector<T>(0, used, [&](auto d, std::size_t j) HWY_ATTR {
            const auto a = m.load(d, j);
            const auto b = kFourRows ? m.load(d, columns + j) : a;
            const auto c = kFourRows ? m.load(d, 2 * columns + j) : a;
            const auto e = kFourRows ? m.load(d, 3 * columns + j) : a;
            prefetch_next<kFourRows>(m, columns, j);
            for (std::size_t k = 0; k < rank; ++k) {
                const T* factor = p + k * p_stride;
                T* out = piece + k * width + j;
                auto sum = hn::MulAdd(a, hn::Set(d, factor[0]), hn::LoadU(d, out));
                if constexpr (kFourRows) {
                    sum = hn::MulAdd(b, hn::Set(d, factor[1]), sum);
                    sum = hn::MulAdd(c, hn::Set(d, factor[2]), sum);
                    sum = hn::MulAdd(e, hn::Set(d, factor[3]), sum);
                }
                hn::StoreU(sum, d, out);
            }
        });
    }

    // At most kRows rows and kMostColumns columns of P.
    template <class Source, class T>
    static void add_block(const LowRankMatrix& m, std::size_t top, const T* p, std::size_t p_stride,
                          T* q, std::size_t q_stride, std::size_t rank) {
        const std::size_t bottom = std::min(m.rows, top + kRows);
        const std::size_t width = kPieceBytes / sizeof(T) / rank / 16 * 16;
        HWY_ALIGN T piece[kPieceBytes / sizeof(T)];
        for (std::size_t left = 0; left < m.columns; left += width) {
            const std::size_t used = std::min(width, m.columns - left);
            std::fill_n(piece, width * rank, T{0});
            std::size_t row = top;
            for (; row + 4 <= bottom; row += 4)
                add_rows<true>(Source::from(m, row, left), m.columns, p + row, p_stride, piece,
                               width, used, rank);
            for (; row < bottom; ++row)
                add_rows<false>(Source::from(m, row, left), m.columns, p + row, p_stride, piece,
                                width, used, rank);
            for (std::size_t k = 0; k < rank; ++k)
                for (std::size_t i = 0; i < used; ++i)
                    q[k * q_stride + left + i] += piece[k * width + i];
        }
    }

    template <class Format, bool kHasError>
    static void run(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                    const ThinMatrix&, std::size_t rank) {
        using T = typename Format::Compute;
        const T* factor = static_cast<const T*>(p.data);
        T* out = static_cast<T*>(q.data);
        for (std::size_t k = 0; k < rank; k += kMostColumns)
            for (std::size_t top = 0; top < m.rows; top += kRows)
                add_block<Rows<Format, kHasError>>(m, top, factor + k * p.stride, p.stride,
                                                   out + k * q.stride, q.stride,
                                                   std::min(rank - k, kMostColumns));
    }
};

// Calls store(row, vector) with one or four rows of P Q^T, at the elements from j on.
template <bool kFourRows, class D, class T, class Store>
HWY_INLINE void multiply(D d, std::size_t j, const T* p, std::size_t p_stride, const T* q,
                         std::size_t q_stride, std::size_t rank, Store store) {
    const auto first = hn::LoadU(d, q + j);
    auto a = hn::Mul(hn::Set(d, p[0]), first);
    auto b = kFourRows ? hn::Mul(hn::Set(d, p[1]), first) : a;
    auto c = kFourRows ? hn::Mul(hn::Set(d, p[2]), first) : a;
    auto e = kFourRows ? hn::Mul(hn::Set(d, p[3]), first) : a;
    for (std::size_t k = 1; k < rank; ++k) {
        const auto column = hn::LoadU(d, q + k * q_stride + j);
        const T* factor = p + k * p_stride;
        a = hn::Add(a, hn::Mul(hn::Set(d, factor[0]), column));
        if constexpr (kFourRows) {
            b = hn::Add(b, hn::Mul(hn::Set(d, factor[1]), column));
            c = hn::Add(c, hn::Mul(hn::Set(d, factor[2]), column));
            e = hn::Add(e, hn::Mul(hn::Set(d, factor[3]), column));
        }
    }
    store(0, a);
    if constexpr (kFourRows) {
        store(1, b);
        store(2, c);
        store(3, e);
    }
}

template <class Format, bool kHasError>
struct RestoreRows {
    using T = typename Format::Compute;

    template <bool kFourRows>
    static void run(const LowRankMatrix& m, std::size_t row, const ThinMatrix& p,
                    const ThinMatrix& q, const ThinMatrix& own_q, std::size_t rank) {
        const auto source = Rows<Format, kHasError>::from(m, row);
        const T* left = static_cast<const T*>(p.data) + row;
        const T* right = static_cast<const T*>(q.data);
        const T* own_right = static_cast<const T*>(own_q.data);
        const std::size_t columns = m.columns;
        for_each_vector<T>(0, columns, [&](auto d, std::size_t j) HWY_ATTR {
            if constexpr (kHasError) {
                const auto keep = [&](std::size_t i, auto sent)
                                      HWY_ATTR { source.store_error(d, i * columns + j, sent); };
                multiply<kFourRows>(d, j, left, p.stride, own_right, own_q.stride, rank, keep);
            }
            const auto give = [&](std::size_t i, auto result)
                                  HWY_ATTR { source.store_gradient(d, i * columns + j, result); };
            multiply<kFourRows>(d, j, left, p.stride, right, q.stride, rank, give);
            prefetch_next<kFourRows>(source, columns, j);
        });
    }
};

struct Restore {
    template <class Format, bool kHasError>
    static void run(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                    const ThinMatrix& own_q, std::size_t rank) {
        using SomeRows = RestoreRows<Format, kHasError>;
        std::size_t row = 0;
        for (; row + 4 <= m.rows; row += 4) SomeRows::template run<true>(m, row, p, q, own_q, rank);
        for (; row < m.rows; ++row) SomeRows::template run<false>(m, row, p, q, own_q, rank);
    }
};

template <class Product, class Format>
void run(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q, const ThinMatrix& own_q,
         std::size_t rank) {
    return m.error ? Product::template run<Format, true>(m, p, q, own_q, rank)
                   : Product::template run<Format, false>(m, p, q, own_q, rank);
}

template <class Product>
void run_as(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
            const ThinMatrix& own_q, std::size_t rank) {
    switch (m.dtype) {
        case DDP_F16:
            return run<Product, F16>(m, p, q, own_q, rank);
        case DDP_BF16:
            return run<Product, BF16>(m, p, q, own_q, rank);
        case DDP_F64:
            return run<Product, F64>(m, p, q, own_q, rank);
        default:
            return run<Product, F32>(m, p, q, own_q, rank);
    }
}

void project_target(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                    std::size_t rank) {
    run_as<Project>(m, p, q, {}, rank);
}
void project_back_target(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                         std::size_t rank) {
    run_as<ProjectBack>(m, p, q, {}, rank);
}
void restore_target(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                    const ThinMatrix& own_q, std::size_t rank) {
    run_as<Restore>(m, p, q, own_q, rank);
}

}  // namespace HWY_NAMESPACE
}  // namespace libddp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace libddp::cpu {
namespace {

HWY_EXPORT(project_target);
HWY_EXPORT(project_back_target);
HWY_EXPORT(restore_target);

void require_real(const LowRankMatrix& m) {
    if (!is_floating(m.dtype) || is_complex(m.dtype))
        fail(DDP_ERROR_UNSUPPORTED, "low-rank products of ", dtype_name(m.dtype),
             " are not supported");
}

}  // namespace

void low_rank_project(const LowRankMatrix& m, const ThinMatrix& q, const ThinMatrix& p,
                      std::size_t rank) {
    require_real(m);
    HWY_DYNAMIC_DISPATCH(project_target)(m, p, q, rank);
}

void low_rank_project_back(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                           std::size_t rank) {
    require_real(m);
    HWY_DYNAMIC_DISPATCH(project_back_target)(m, p, q, rank);
}

void low_rank_restore(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                      const ThinMatrix& own_q, std::size_t rank) {
    require_real(m);
    HWY_DYNAMIC_DISPATCH(restore_target)(m, p, q, own_q, rank);
}

}  // namespace libddp::cpu
#endif
