// The products of a large matrix with thin ones, and the work on thin ones, as blocks of a kernel
// do them. Plain C++ can include this file: a test runs it on the CPU.
//
// M = gradient + error is formed where it is read, and all matrices of a list are in one launch: a
// library's products would need M in memory and a launch each. Work is divided into blocks of like
// size, counted through all matrices. All three products are bound by memory. Every sum has one
// order, whatever the number of threads: each lane adds up its elements, then lanes are added.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/formats.h"
#include "kernels/cuda/tables.h"
#include "kernels/device_kernels.h"
#include "kernels/dtype.h"
#include "kernels/low_rank.h"
#include "kernels/thin_matrix.h"
#include "util/error.h"

namespace libddp::cuda {

struct LowRankRow {
    ddp_low_rank m;
    std::uint64_t first_chunk;  // the number of its first block, among all
};

constexpr int kLowRankRows = 34;  // parameters of a kernel are 4 KiB at most

struct LowRankTable {
    std::uint64_t blocks;  // of all rows
    std::int32_t rows;
    LowRankRow row[kLowRankRows];
};
static_assert(sizeof(LowRankTable) <= 4096);

// Columns that a thread takes at a time, so that it reads and writes as much as 16 bytes at once.
constexpr std::uint32_t kWide = 4;

LIBDDP_EVERYWHERE std::uint32_t columns_there(const ddp_low_rank& m, std::uint64_t left) {
    return m.columns - left < kWide ? static_cast<std::uint32_t>(m.columns - left) : kWide;
}

// A matrix with its types.
template <class Format>
struct LowRankView {
    using T = typename Format::Compute;
    using Stored = typename Format::Stored;
    Stored* gradient;
    T* error;
    T *p, *q, *own_q;
    std::uint64_t columns;
    // There is an error, and everything that is read or written together exists and is aligned. The
    // products then load without branches, so that a GPU starts all loads before it waits for one.
    bool whole;

    explicit LIBDDP_EVERYWHERE LowRankView(const ddp_low_rank& m)
        : gradient(static_cast<Stored*>(m.gradient)),
          error(static_cast<T*>(m.error)),
          p(static_cast<T*>(m.p)),
          q(static_cast<T*>(m.q)),
          own_q(static_cast<T*>(m.own_q)),
          columns(m.columns),
          whole(error != nullptr && m.columns % kWide == 0 && m.q_stride % kWide == 0 &&
                is_aligned<Stored, kWide>(gradient) && is_aligned<T, kWide>(error) &&
                is_aligned<T, kWide>(q) && is_aligned<T, kWide>(own_q)) {}
};

// A thread's columns of a row of M, as they lie in memory.
template <class Format>
struct LowRankPiece {
    using T = typename Format::Compute;
    typename Format::Stored gradient[kWide];
    T error[kWide];

    // The first n; the others are zero.
    template <bool kWhole>
    LIBDDP_EVERYWHERE void load(const LowRankView<Format>& view, std::uint64_t row,
                                std::uint64_t column, std::uint32_t n) {
        const std::uint64_t at = row * view.columns + column;
        if constexpr (kWhole) {
            load_aligned(gradient, view.gradient + at);
            load_aligned(error, view.error + at);
        } else {
            load_some(gradient, static_cast<const typename Format::Stored*>(view.gradient + at), n);
            load_some(error, static_cast<const T*>(view.error + at), view.error ? n : 0);
        }
    }
    // Without an error nothing is added, so that -0 stays what it is.
    template <bool kWhole>
    LIBDDP_EVERYWHERE T value(const LowRankView<Format>& view, std::uint32_t w) const {
        const T own = Format::load(gradient[w]);
        return kWhole || view.error ? own + error[w] : own;
    }
};

// A thread's columns of a column of Q. The first n; the others are zero.
template <bool kWhole, class T>
LIBDDP_EVERYWHERE void load_q(T (&values)[kWide], const T* from, std::uint32_t n) {
    if constexpr (kWhole)
        load_aligned(values, from);
    else
        load_some(values, from, n);
}

// P = M Q. A block has a few rows: each warp has four, so that what is loaded of Q serves them all.
struct Project {
    static constexpr bool kTiled = true;
    static constexpr std::uint32_t kThreads = 128, kLanes = 32, kHeight = 4,
                                   kRows = kThreads / kLanes * kHeight;

    // For kTile columns of Q at a time.
    template <class T, std::uint32_t kTile>
    struct Shared {
        static constexpr std::uint32_t kSums = kRows * kTile;
        T lanes[kSums][kLanes + 1];
    };

    static LIBDDP_EVERYWHERE std::uint64_t blocks_of(const ddp_low_rank& m) {
        return (m.rows + kRows - 1) / kRows;
    }

    template <class Format, std::uint32_t kTile, class Threads>
    static LIBDDP_COOPERATIVE void run(const Threads& threads,
                                       Shared<typename Format::Compute, kTile>& shared,
                                       const ddp_low_rank& m, std::uint64_t block) {
        for (std::uint32_t k = 0; k < m.rank; k += kTile)
            run_tile<Format, kTile>(threads, shared, m, block * kRows, k);
    }

private:
    template <class Format, std::uint32_t kTile, class Threads>
    static LIBDDP_COOPERATIVE void run_tile(const Threads& threads,
                                            Shared<typename Format::Compute, kTile>& shared,
                                            const ddp_low_rank& m, std::uint64_t top,
                                            std::uint32_t column) {
        using T = typename Format::Compute;
        const LowRankView<Format> view(m);
        for (std::uint32_t v = threads.index(); v < kThreads; v += threads.size()) {
            const std::uint32_t lane = v % kLanes, first = v / kLanes * kHeight;
            T sums[kHeight][kTile] = {};
            if (view.whole)
                add_up<true>(sums, view, m, top + first, column, lane);
            else
                add_up<false>(sums, view, m, top + first, column, lane);
            LIBDDP_UNROLL
            for (std::uint32_t r = 0; r < kHeight; ++r) {
                LIBDDP_UNROLL
                for (std::uint32_t k = 0; k < kTile; ++k)
                    shared.lanes[(first + r) * kTile + k][lane] = sums[r][k];
            }
        }
        threads.sync();
        for (std::uint32_t v = threads.index(); v < shared.kSums; v += threads.size()) {
            const std::uint64_t row = top + v / kTile;
            const std::uint32_t k = column + v % kTile;
            T total = 0;
            for (std::uint32_t lane = 0; lane < kLanes; ++lane) total += shared.lanes[v][lane];
            if (row < m.rows && k < m.rank) view.p[k * m.p_stride + row] = total;
        }
        threads.sync();
    }

    // A lane's share of four rows. Instead of rows and columns of Q that are not there it reads the
    // last ones, for sums that nobody wants.
    template <bool kWhole, class Format, class T, std::uint32_t kSumsHeight,
              std::uint32_t kSumsTile>
    static LIBDDP_COOPERATIVE void add_up(T (&sums)[kSumsHeight][kSumsTile],
                                          const LowRankView<Format>& view, const ddp_low_rank& m,
                                          std::uint64_t top, std::uint32_t column,
                                          std::uint32_t lane) {
        for (std::uint64_t j = lane * kWide; j < m.columns; j += kLanes * kWide) {
            const std::uint32_t n = columns_there(m, j);
            T factors[kSumsTile][kWide];
            LowRankPiece<Format> pieces[kSumsHeight];
            LIBDDP_UNROLL
            for (std::uint32_t r = 0; r < kSumsHeight; ++r)
                pieces[r].template load<kWhole>(view, top + r < m.rows ? top + r : m.rows - 1, j,
                                                n);
            LIBDDP_UNROLL
            for (std::uint32_t k = 0; k < kSumsTile; ++k) {
                const std::uint64_t there = column + k < m.rank ? column + k : m.rank - 1;
                load_q<kWhole>(factors[k], static_cast<const T*>(view.q + there * m.q_stride + j),
                               n);
            }
            LIBDDP_UNROLL
            for (std::uint32_t r = 0; r < kSumsHeight; ++r) {
                LIBDDP_UNROLL
                for (std::uint32_t w = 0; w < kWide; ++w) {
                    const T value = pieces[r].template value<kWhole>(view, w);
                    LIBDDP_UNROLL
                    for (std::uint32_t k = 0; k < kSumsTile; ++k)
                        sums[r][k] += value * factors[k][w];
                }
            }
        }
    }
};

// own_q += M^T P. A block has four columns for each lane of a warp, and a part of the rows: each
// warp adds up every kWarps-th. Where there are several parts they are added up afterwards.
struct ProjectBack {
    static constexpr bool kTiled = true;
    static constexpr std::uint32_t kThreads = 256, kLanes = 32, kWarps = kThreads / kLanes,
                                   kColumns = kLanes * kWide;
    static constexpr std::uint32_t kPartRows = DDP_LOW_RANK_PART_ROWS;

    template <class T, std::uint32_t kTile>
    struct Shared {
        T p[kTile][kPartRows];
        T sums[kTile][kWarps][kColumns];
    };

    static LIBDDP_EVERYWHERE std::uint64_t blocks_across(const ddp_low_rank& m) {
        return (m.columns + kColumns - 1) / kColumns;
    }
    static LIBDDP_EVERYWHERE std::uint64_t blocks_of(const ddp_low_rank& m) {
        return blocks_across(m) * low_rank_parts(m.rows);
    }

    template <class Format, std::uint32_t kTile, class Threads>
    static LIBDDP_COOPERATIVE void run(const Threads& threads,
                                       Shared<typename Format::Compute, kTile>& shared,
                                       const ddp_low_rank& m, std::uint64_t block) {
        const std::uint64_t part = block / blocks_across(m),
                            left = block % blocks_across(m) * kColumns;
        for (std::uint32_t k = 0; k < m.rank; k += kTile)
            run_tile<Format, kTile>(threads, shared, m, part, left, k);
    }

private:
    template <class Format, std::uint32_t kTile, class Threads>
    static LIBDDP_COOPERATIVE void run_tile(const Threads& threads,
                                            Shared<typename Format::Compute, kTile>& shared,
                                            const ddp_low_rank& m, std::uint64_t part,
                                            std::uint64_t left, std::uint32_t column) {
        using T = typename Format::Compute;
        const LowRankView<Format> view(m);
        const std::uint64_t top = part * kPartRows;
        const auto rows =
            static_cast<std::uint32_t>(m.rows - top < kPartRows ? m.rows - top : kPartRows);
        for (std::uint32_t v = threads.index(); v < kTile * kPartRows; v += threads.size()) {
            const std::uint32_t k = v / kPartRows, i = v % kPartRows;
            shared.p[k][i] = column + k < m.rank && i < rows
                                 ? view.p[(column + k) * m.p_stride + top + i]
                                 : T{0};
        }
        threads.sync();
        for (std::uint32_t v = threads.index(); v < kThreads; v += threads.size()) {
            const std::uint32_t lane = v % kLanes, warp = v / kLanes;
            const std::uint64_t j = left + lane * kWide;
            const std::uint32_t n = j < m.columns ? columns_there(m, j) : 0;
            T sums[kTile][kWide] = {};
            if (view.whole && n > 0)
                add_up<true>(sums, view, shared.p, top, j, n, warp, rows);
            else if (n > 0)
                add_up<false>(sums, view, shared.p, top, j, n, warp, rows);
            LIBDDP_UNROLL
            for (std::uint32_t k = 0; k < kTile; ++k) {
                LIBDDP_UNROLL
                for (std::uint32_t w = 0; w < kWide; ++w)
                    shared.sums[k][warp][lane * kWide + w] = sums[k][w];
            }
        }
        threads.sync();
        for (std::uint32_t v = threads.index(); v < kTile * kColumns; v += threads.size()) {
            const std::uint32_t at = v % kColumns, k = column + v / kColumns;
            const std::uint64_t j = left + at;
            if (j >= m.columns || k >= m.rank) continue;
            T total = 0;
            for (std::uint32_t warp = 0; warp < kWarps; ++warp)
                total += shared.sums[k - column][warp][at];
            if (low_rank_parts(m.rows) == 1)
                view.own_q[k * m.q_stride + j] += total;
            else
                static_cast<T*>(m.parts)[(part * m.rank + k) * m.columns + j] = total;
        }
        threads.sync();
    }

    // A warp's rows of four columns, four rows at a time.
    template <bool kWhole, class Format, class T, std::uint32_t kSumsTile>
    static LIBDDP_COOPERATIVE void add_up(T (&sums)[kSumsTile][kWide],
                                          const LowRankView<Format>& view,
                                          const T (&p)[kSumsTile][kPartRows], std::uint64_t top,
                                          std::uint64_t column, std::uint32_t n,
                                          std::uint32_t first, std::uint32_t rows) {
        constexpr std::uint32_t kTogetherRows = 4;
        for (std::uint32_t i = first; i < rows; i += kTogetherRows * kWarps) {
            LowRankPiece<Format> pieces[kTogetherRows];
            LIBDDP_UNROLL
            for (std::uint32_t r = 0; r < kTogetherRows; ++r) {
                const std::uint32_t row = i + r * kWarps < rows ? i + r * kWarps : rows - 1;
                pieces[r].template load<kWhole>(view, top + row, column, n);
            }
            LIBDDP_UNROLL
            for (std::uint32_t r = 0; r < kTogetherRows; ++r) {
                if (i + r * kWarps >= rows) break;
                LIBDDP_UNROLL
                for (std::uint32_t w = 0; w < kWide; ++w) {
                    const T value = pieces[r].template value<kWhole>(view, w);
                    LIBDDP_UNROLL
                    for (std::uint32_t k = 0; k < kSumsTile; ++k)
                        sums[k][w] += value * p[k][i + r * kWarps];
                }
            }
        }
    }
};

// own_q += the sum of the parts, where there are several. A block has as many columns as a warp has
// lanes, of one column of Q: each warp adds up every kWarps-th part.
struct AddParts {
    static constexpr bool kTiled = false;
    static constexpr std::uint32_t kThreads = 256, kColumns = 32, kWarps = kThreads / kColumns;

    template <class T, std::uint32_t kTile>
    struct Shared {
        T sums[kWarps][kColumns];
    };

    static LIBDDP_EVERYWHERE std::uint64_t blocks_across(const ddp_low_rank& m) {
        return (m.columns + kColumns - 1) / kColumns;
    }
    static LIBDDP_EVERYWHERE std::uint64_t blocks_of(const ddp_low_rank& m) {
        return low_rank_parts(m.rows) > 1 ? blocks_across(m) * m.rank : 0;
    }

    template <class Format, std::uint32_t kTile, class Threads>
    static LIBDDP_COOPERATIVE void run(const Threads& threads,
                                       Shared<typename Format::Compute, kTile>& shared,
                                       const ddp_low_rank& m, std::uint64_t block) {
        using T = typename Format::Compute;
        const LowRankView<Format> view(m);
        const std::uint64_t k = block / blocks_across(m),
                            left = block % blocks_across(m) * kColumns;
        const std::uint64_t parts = low_rank_parts(m.rows);
        for (std::uint32_t v = threads.index(); v < kThreads; v += threads.size()) {
            const std::uint64_t j = left + v % kColumns;
            T total = 0;
            for (std::uint64_t part = v / kColumns; part < parts && j < m.columns; part += kWarps)
                total += static_cast<const T*>(m.parts)[(part * m.rank + k) * m.columns + j];
            shared.sums[v / kColumns][v % kColumns] = total;
        }
        threads.sync();
        for (std::uint32_t v = threads.index(); v < kColumns && left + v < m.columns;
             v += threads.size()) {
            T total = 0;
            for (std::uint32_t warp = 0; warp < kWarps; ++warp) total += shared.sums[warp][v];
            view.own_q[k * m.q_stride + left + v] += total;
        }
        threads.sync();
    }
};

// gradient = P Q^T and error = M - P own_q^T, with the bits of the CPU. Threads have four rows of
// four columns each, and do not wait for others.
struct Restore {
    static constexpr bool kTiled = false;
    static constexpr std::uint32_t kThreads = 256, kLanes = 128, kHeight = 4,
                                   kRows = kThreads / kLanes * kHeight;
    static constexpr std::uint32_t kColumns = kWide * kLanes;

    static LIBDDP_EVERYWHERE std::uint64_t blocks_across(const ddp_low_rank& m) {
        return (m.columns + kColumns - 1) / kColumns;
    }
    static LIBDDP_EVERYWHERE std::uint64_t blocks_of(const ddp_low_rank& m) {
        return (m.rows + kRows - 1) / kRows * blocks_across(m);
    }

    template <class T, std::uint32_t kTile>
    struct Shared {};

    template <class Format, std::uint32_t kTile, class Threads>
    static LIBDDP_COOPERATIVE void run(const Threads& threads,
                                       Shared<typename Format::Compute, kTile>&,
                                       const ddp_low_rank& m, std::uint64_t block) {
        const std::uint64_t top = block / blocks_across(m) * kRows,
                            left = block % blocks_across(m) * kColumns;
        const bool left_out = is_set(m.left_out[0]) || is_set(m.left_out[1]);
        for (std::uint32_t v = threads.index(); v < kThreads; v += threads.size()) {
            const std::uint64_t j = left + v % kLanes * kWide, row = top + v / kLanes * kHeight;
            if (j >= m.columns) continue;
            const LowRankView<Format> view(m);
            if (left_out)
                fill(view, m, row, j);
            else if (view.whole)
                restore<true>(view, m, row, j);
            else
                restore<false>(view, m, row, j);
        }
    }

private:
    static LIBDDP_EVERYWHERE bool is_set(const std::uint32_t* flag) {
        return flag != nullptr && *flag != 0;
    }

    template <class Format>
    static LIBDDP_EVERYWHERE void fill(const LowRankView<Format>& view, const ddp_low_rank& m,
                                       std::uint64_t top, std::uint64_t j) {
        typename Format::Stored values[kWide];
        for (auto& value : values) value = Format::store(quiet_nan<typename Format::Compute>());
        for (std::uint64_t row = top; row < top + kHeight && row < m.rows; ++row)
            store_some(view.gradient + row * m.columns + j, values, columns_there(m, j));
    }

    // Everything is read before anything is written. Rows that are not there are not read: another
    // thread writes the last one.
    template <bool kWhole, class Format>
    static LIBDDP_EVERYWHERE void restore(const LowRankView<Format>& view, const ddp_low_rank& m,
                                          std::uint64_t top, std::uint64_t j) {
        using T = typename Format::Compute;
        const std::uint32_t n = columns_there(m, j);
        LowRankPiece<Format> pieces[kHeight];
        LIBDDP_UNROLL
        for (std::uint32_t r = 0; r < kHeight; ++r)
            if ((kWhole || view.error) && top + r < m.rows)
                pieces[r].template load<kWhole>(view, top + r, j, n);
        T result[kHeight][kWide] = {}, sent[kHeight][kWide] = {};
        for (std::uint32_t k = 0; k < m.rank; ++k) {
            T q[kWide], own_q[kWide];
            load_q<kWhole>(q, static_cast<const T*>(view.q + k * m.q_stride + j), n);
            load_q<kWhole>(own_q, static_cast<const T*>(view.own_q + k * m.q_stride + j),
                           view.error ? n : 0);
            LIBDDP_UNROLL
            for (std::uint32_t r = 0; r < kHeight; ++r) {
                const T p = view.p[k * m.p_stride + (top + r < m.rows ? top + r : m.rows - 1)];
                LIBDDP_UNROLL
                // the first one alone, so that -0 stays what it is
                for (std::uint32_t w = 0; w < kWide; ++w) {
                    result[r][w] = k == 0 ? p * q[w] : result[r][w] + p * q[w];
                    sent[r][w] = k == 0 ? p * own_q[w] : sent[r][w] + p * own_q[w];
                }
            }
        }
        LIBDDP_UNROLL
        for (std::uint32_t r = 0; r < kHeight; ++r) {
            if (top + r >= m.rows) continue;
            const std::uint64_t at = (top + r) * m.columns + j;
            if (kWhole || view.error) {
                T error[kWide];
                LIBDDP_UNROLL
                for (std::uint32_t w = 0; w < kWide; ++w)
                    error[w] = pieces[r].template value<kWhole>(view, w) - sent[r][w];
                store_some(view.error + at, error, n);
            }
            typename Format::Stored gradient[kWide];
            LIBDDP_UNROLL
            for (std::uint32_t w = 0; w < kWide; ++w) gradient[w] = Format::store(result[r][w]);
            store_some(view.gradient + at, gradient, n);
        }
    }
};

// The share of a block's threads in a table. The bits do not depend on kTile.
template <class Product, class Format, std::uint32_t kTile, class Threads>
LIBDDP_COOPERATIVE void run_block(
    const Threads& threads,
    typename Product::template Shared<typename Format::Compute, kTile>& shared,
    const LowRankTable& table, std::uint64_t block) {
    const LowRankRow& row = table.row[find_row(table, block, 0, table.rows - 1)];
    if (row.m.only_if != nullptr && *row.m.only_if == 0) return;
    Product::template run<Format, kTile>(threads, shared, row.m, block - row.first_chunk);
}

// Operations on thin matrices and flags: one block each.

constexpr std::uint32_t kThinThreads = 512;
constexpr int kThinRows = 72;  // parameters of a kernel are 4 KiB at most

struct ThinTable {
    ddp_thin_rules rules;
    std::int32_t rows;
    ddp_thin row[kThinRows];
};
static_assert(sizeof(ThinTable) + sizeof(std::uint64_t) <= 4096);  // and the operation

constexpr int kDoubtRows = 169;

struct DoubtTable {
    const std::uint32_t* only_if;
    std::int32_t rows;
    ddp_doubt row[kDoubtRows];
};
static_assert(sizeof(DoubtTable) <= 4096);

// Whether all are finite; all threads are told.
template <class Format, class Threads>
LIBDDP_COOPERATIVE bool all_finite(const Threads& threads, thin::Shared& shared,
                                   const typename Format::Stored* values, std::uint64_t count) {
    bool bad = false;
    for (std::uint64_t i = threads.index(); i < count; i += threads.size()) {
        const auto value = Format::load(values[i]);
        bad = bad || value - value != 0;
    }
    return !thin::any(threads, shared, bad);
}

// Format: F32 or F64.
template <class Format, class Threads>
LIBDDP_COOPERATIVE void run_thin(const Threads& threads, thin::Shared& shared, ddp_thin_op op,
                                 const ddp_thin& a, const ddp_thin_rules& rules) {
    using T = typename Format::Stored;
    T* data = static_cast<T*>(a.data);
    const std::uint64_t count = std::uint64_t{a.rows} * a.columns;
    const bool bad = op != DDP_THIN_CHECK && a.bad != nullptr && *a.bad != 0;
    switch (op) {
        case DDP_THIN_DRAW:
            return thin::draw(threads, shared, data, a.rows, a.columns, rules.seed, a.owner,
                              rules.step);
        case DDP_THIN_ORTHOGONALIZE:
            if (bad) return;
            return a.qr ? thin::householder(threads, shared, data, a.rows, a.columns, a.workspace)
                        : thin::gram_schmidt(threads, shared, data, a.rows, a.columns,
                                             rules.epsilon, a.workspace);
        case DDP_THIN_CHECK:
            if (!all_finite<Format>(threads, shared, data, count) && threads.index() == 0)
                *a.bad = 1;
            return;
        default:
            if (bad || thin::all_zero(threads, shared, data, count)) return;
            for (std::uint64_t i = threads.index(); i < count; i += threads.size())
                static_cast<T*>(a.kept)[i] = data[i];
    }
}

template <class Format, class Threads>
LIBDDP_COOPERATIVE void run_leave_out(const Threads& threads, thin::Shared& shared,
                                      const ddp_doubt& part, const std::uint32_t* only_if) {
    if (only_if != nullptr && *only_if == 0) return;
    using T = typename Format::Compute;
    auto* values = static_cast<typename Format::Stored*>(part.gradient);
    if (all_finite<Format>(threads, shared, values, part.count)) return;
    for (std::uint64_t i = threads.index(); i < part.count; i += threads.size()) values[i] = {};
    if (threads.index() == 0) *static_cast<T*>(part.mark) = quiet_nan<T>();
}

// From lists of matrices to the parameters of kernels. Plain C++.

// Calls use(table) for tables that hold all items in rows; `table` is empty. add(table, row, item):
// fills in a row.
template <class AnyTable, class Item, class Add, class Use>
void each_filled(AnyTable table, const Item* items, std::size_t count, Add add, Use use) {
    constexpr std::size_t kMost = sizeof table.row / sizeof *table.row;
    for (std::size_t begin = 0; begin < count; begin += kMost) {
        const std::size_t rows = count - begin < kMost ? count - begin : kMost;
        AnyTable filled = table;
        filled.rows = static_cast<std::int32_t>(rows);
        for (std::size_t i = 0; i < rows; ++i) add(filled, filled.row[i], items[begin + i]);
        use(filled);
    }
}

// Product: Project, ProjectBack, AddParts or Restore. Calls use(table).
template <class Product, class Use>
void each_low_rank_table(const ddp_low_rank* items, std::size_t count, Use use) {
    const auto add = [](LowRankTable& table, LowRankRow& row, const ddp_low_rank& item) {
        row = {item, table.blocks};
        table.blocks += Product::blocks_of(item);
    };
    each_filled(LowRankTable{}, items, count, add, [&](const LowRankTable& table) {
        if (table.blocks > 0) use(table);
    });
}

template <class Use>
void each_thin_table(const ddp_thin* items, std::size_t count, const ddp_thin_rules& rules,
                     Use use) {
    ThinTable table{};
    table.rules = rules;
    each_filled(
        table, items, count, [](ThinTable&, ddp_thin& row, const ddp_thin& item) { row = item; },
        use);
}

template <class Use>
void each_doubt_table(const ddp_doubt* items, std::size_t count, const std::uint32_t* only_if,
                      Use use) {
    DoubtTable table{};
    table.only_if = only_if;
    each_filled(
        table, items, count, [](DoubtTable&, ddp_doubt& row, const ddp_doubt& item) { row = item; },
        use);
}

// Calls use(Format()). Throws UNSUPPORTED.
template <class Use>
void with_real_format(ddp_dtype dtype, Use use) {
    if (!is_real(dtype))
        fail(DDP_ERROR_UNSUPPORTED, "low-rank products of ", dtype_name(dtype),
             " are not supported");
    with_floating(dtype, use);
}

// Calls use(tile) with a compile-time number of columns that a thread works on at a time.
template <class Product, class Use>
void with_tile(const LowRankTable& table, Use use) {
    std::size_t rank = 0;
    for (std::int32_t i = 0; i < table.rows; ++i)
        rank = table.row[i].m.rank > rank ? table.row[i].m.rank : rank;
    if (!Product::kTiled || rank <= 1) return use(std::integral_constant<std::uint32_t, 1>());
    if constexpr (Product::kTiled) {
        if (rank <= 2) return use(std::integral_constant<std::uint32_t, 2>());
        use(std::integral_constant<std::uint32_t, 4>());
    }
}

// Calls use(Product(), Format(), tile, table) for each launch that a list needs.
template <class Use>
void each_low_rank_launch(ddp_low_rank_op op, const ddp_low_rank* items, std::size_t count,
                          ddp_dtype dtype, Use use) {
    const auto launch = [&](auto product) {
        each_low_rank_table<decltype(product)>(items, count, [&](const LowRankTable& table) {
            with_tile<decltype(product)>(table, [&](auto tile) {
                with_real_format(dtype, [&](auto format) { use(product, format, tile, table); });
            });
        });
    };
    if (op == DDP_LOW_RANK_PROJECT) {
        launch(Project());
    } else if (op == DDP_LOW_RANK_PROJECT_BACK) {
        launch(ProjectBack());
        launch(AddParts());
    } else {
        launch(Restore());
    }
}

}  // namespace libddp::cuda
