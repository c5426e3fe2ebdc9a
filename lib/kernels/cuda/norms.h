// Terms of norms, as blocks of a kernel count them in the order of norm_order.h. Plain C++ can
// include this file: a test runs it on the CPU.
//
// All lists of a launch are cut into parts, which are counted through. A block has 16 parts, and a
// thread one of the 16 sums of one of them: neighbouring threads read neighbouring numbers. A second
// kernel has a block for each list, which adds up its parts.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/formats.h"
#include "kernels/cuda/tables.h"
#include "kernels/device_kernels.h"
#include "kernels/norm_order.h"
#include "util/error.h"

namespace libddp::cuda {

constexpr int kNormThreads = norm_order::kTotals;
constexpr std::uint64_t kNormPartsPerBlock = kNormThreads / norm_order::kSums;

struct NormRow {
    const void* data;
    double* terms;
    std::uint64_t count;        // numbers
    std::uint64_t first_chunk;  // its first part, among all
};

constexpr int kNormRows = 124;  // parameters of a kernel are 4 KiB at most

struct NormTable {
    std::uint64_t chunks;  // parts of all rows
    double* sums;          // of each part
    std::int32_t rows;
    NormRow row[kNormRows];
};
static_assert(sizeof(NormTable) <= 4096);

struct NormShared {
    double sums[kNormThreads];
};

LIBDDP_EVERYWHERE double magnitude(float x) {
    return x < 0 ? -static_cast<double>(x) : static_cast<double>(x);
}
LIBDDP_EVERYWHERE double magnitude(double x) {
    return x < 0 ? -x : x;
}
template <class T>
LIBDDP_EVERYWHERE double magnitude(Complex<T> z) {
    const double re = z.re, im = z.im;
    return std::sqrt(re * re + im * im);
}

struct NormMagnitudes {
    template <class T>
    static LIBDDP_EVERYWHERE double term(T x) {
        return magnitude(x);
    }
    static LIBDDP_EVERYWHERE double with(double sum, double term) { return sum + term; }
};
// Complex numbers come as pairs.
struct NormSquares : NormMagnitudes {
    template <class T>
    static LIBDDP_EVERYWHERE double term(T x) {
        return static_cast<double>(x) * static_cast<double>(x);
    }
};
// NaN is the largest of all.
struct NormLargest : NormMagnitudes {
    static LIBDDP_EVERYWHERE double with(double most, double term) {
        return !is_nan(most) && (term > most || is_nan(term)) ? term : most;
    }
};

// One of the sums of a part. Zeros, which change none, stand for what is behind the end.
template <class Kind, class Format>
LIBDDP_EVERYWHERE double norm_sum(const NormTable& table, std::uint64_t part, std::uint32_t which) {
    using Stored = typename Format::Stored;
    constexpr std::uint32_t kAtOnce = 8, kSums = norm_order::kSums;
    if (part >= table.chunks) return 0;
    const NormRow& row = table.row[find_row(table, part, 0, table.rows - 1)];
    const auto* const data = static_cast<const Stored*>(row.data);
    const std::uint64_t first = (part - row.first_chunk) * norm_order::kPart;
    const std::uint64_t end =
        first + norm_order::kPart < row.count ? first + norm_order::kPart : row.count;
    double sum = 0;
    for (std::uint64_t i = first + which; i < end; i += kAtOnce * kSums) {
        Stored values[kAtOnce];
        LIBDDP_UNROLL
        for (std::uint32_t k = 0; k < kAtOnce; ++k)
            values[k] = i + k * kSums < end ? data[i + k * kSums] : Stored{};
        LIBDDP_UNROLL
        for (std::uint32_t k = 0; k < kAtOnce; ++k)
            sum = Kind::with(sum, Kind::term(Format::load(values[k])));
    }
    return sum;
}

// Adds n neighbouring sums to each other, everywhere in the block.
template <class Kind, class Threads>
LIBDDP_COOPERATIVE void add_in_halves(const Threads& threads, NormShared& shared, std::uint32_t n) {
    for (std::uint32_t half = n / 2; half > 0; half /= 2) {
        threads.sync();
        for (std::uint32_t i = threads.index(); i < kNormThreads; i += threads.size())
            if (i % n < half) shared.sums[i] = Kind::with(shared.sums[i], shared.sums[i + half]);
    }
    threads.sync();
}

template <class Kind, class Format, class Threads>
LIBDDP_COOPERATIVE void sum_norm_parts(const Threads& threads, NormShared& shared,
                                       const NormTable& table, std::uint64_t block) {
    constexpr std::uint32_t kSums = norm_order::kSums;
    const std::uint64_t first = block * kNormPartsPerBlock;
    for (std::uint32_t i = threads.index(); i < kNormThreads; i += threads.size())
        shared.sums[i] = norm_sum<Kind, Format>(table, first + i / kSums, i % kSums);
    add_in_halves<Kind>(threads, shared, kSums);
    for (std::uint32_t i = threads.index(); i < kNormThreads; i += threads.size())
        if (i % kSums == 0 && first + i / kSums < table.chunks)
            table.sums[first + i / kSums] = shared.sums[i];
    threads.sync();  // before the next block, if these threads play that, too
}

template <class Kind, class Threads>
LIBDDP_COOPERATIVE void sum_norm_row(const Threads& threads, NormShared& shared,
                                     const NormTable& table, std::uint32_t index) {
    const NormRow& row = table.row[index];
    const std::uint64_t parts = (row.count + norm_order::kPart - 1) / norm_order::kPart;
    for (std::uint32_t i = threads.index(); i < kNormThreads; i += threads.size()) {
        double total = 0;
        for (std::uint64_t part = i; part < parts; part += kNormThreads)
            total = Kind::with(total, table.sums[row.first_chunk + part]);
        shared.sums[i] = total;
    }
    add_in_halves<Kind>(threads, shared, kNormThreads);
    if (threads.index() == 0) *row.terms = shared.sums[0];
    threads.sync();
}

// From lists to the parameters of kernels. Plain C++.

inline std::uint64_t blocks_of(const NormTable& table) {
    return (table.chunks + kNormPartsPerBlock - 1) / kNormPartsPerBlock;
}

// Calls use(table) for tables that hold all items.
template <class Use>
void each_norm_table(const ddp_norm_item* items, std::size_t count, ddp_dtype dtype,
                     ddp_norm_kind kind, void* scratch, Use use) {
    auto* sums = static_cast<double*>(scratch);
    for (std::size_t begin = 0; begin < count; begin += kNormRows) {
        NormTable table{};
        table.sums = sums;
        for (std::size_t i = begin; i < count && table.rows < kNormRows; ++i) {
            const std::size_t numbers =
                norm_order::numbers(items[i].count, dtype, kind == DDP_NORM_SQUARES);
            table.row[table.rows++] = {items[i].data, items[i].terms, numbers, table.chunks};
            table.chunks += norm_order::parts(numbers);
        }
        sums += table.chunks;
        use(table);
    }
}

// Calls use(Kind(), Format()). Throws UNSUPPORTED.
template <class Use>
void with_norm_format(ddp_dtype dtype, ddp_norm_kind kind, Use use) {
    if (!is_floating(dtype)) fail(DDP_ERROR_UNSUPPORTED, "no norm of ", dtype_name(dtype));
    if (kind == DDP_NORM_SQUARES)
        return with_floating(part_of(dtype), [&](auto format) { use(NormSquares(), format); });
    const auto with_kind = [&](auto format) {
        kind == DDP_NORM_LARGEST ? use(NormLargest(), format) : use(NormMagnitudes(), format);
    };
    switch (dtype) {
        case DDP_C64:
            return with_kind(C64());
        case DDP_C128:
            return with_kind(C128());
        default:
            return with_floating(dtype, with_kind);
    }
}

}  // namespace libddp::cuda
