// Operations on a thin matrix by cooperating threads (everywhere.h): those of a block on a GPU, or
// one on the CPU. Ranks compute this from the same numbers and must get the same bits, wherever
// their gradients lie, so that every sum has one order.
//
// A sum over a column is that of pieces, one after another. In a piece each of 32 lanes adds up
// every 32nd element, and the lanes are added in a tree. All in f64.
#pragma once

#include <Random123/philox.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/everywhere.h"

namespace libddp::thin {

constexpr std::uint32_t kLanes = 32;
constexpr std::uint32_t kPiece = 8 * kLanes;
constexpr std::uint32_t kUnits = 32;  // pieces that all threads work on at a time
// so that threads with a piece each read different banks
constexpr std::uint32_t kRow = kLanes + 1;
constexpr std::uint32_t kMostThreads = 1024;

// Memory that the threads share.
struct Shared {
    double lanes[kUnits * kRow];
    double pieces[kUnits];
    std::uint32_t count;
};
static_assert(kUnits * kRow >= kMostThreads);

LIBDDP_EVERYWHERE double sum_of_lanes(const double* lanes) {
    double sums[kLanes / 2];
    for (std::uint32_t lane = 0; lane < kLanes / 2; ++lane)
        sums[lane] = lanes[lane] + lanes[lane + kLanes / 2];
    for (std::uint32_t width = kLanes / 4; width > 0; width /= 2)
        for (std::uint32_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    return sums[0];
}

// The sum of one lane over a piece with `count` elements.
template <class T>
LIBDDP_EVERYWHERE double sum_of_lane(const T* a, const T* b, std::size_t count,
                                     std::uint32_t lane) {
    double sum = 0;
    for (std::size_t i = lane; i < count; i += kLanes)
        sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
}

LIBDDP_EVERYWHERE std::size_t smaller(std::size_t a, std::size_t b) {
    return a < b ? a : b;
}

// out[c] = the sum of a[i] * b[c * stride + i] over i < count, for c < columns. All threads see it
// when this returns.
template <class Threads, class T>
LIBDDP_COOPERATIVE void dots(const Threads& threads, Shared& shared, const T* a, const T* b,
                             std::size_t stride, std::size_t columns, std::size_t count,
                             double* out) {
    const std::size_t pieces = (count + kPiece - 1) / kPiece, units = pieces * columns;
    for (std::size_t c = threads.index(); c < columns; c += threads.size()) out[c] = 0;
    for (std::size_t first = 0; first < units; first += kUnits) {
        const auto here = static_cast<std::uint32_t>(smaller(kUnits, units - first));
        for (std::uint32_t item = threads.index(); item < here * kLanes; item += threads.size()) {
            const std::uint32_t unit = item / kLanes, lane = item % kLanes;
            const std::size_t column = (first + unit) / pieces,
                              begin = (first + unit) % pieces * kPiece;
            shared.lanes[unit * kRow + lane] = sum_of_lane(a + begin, b + column * stride + begin,
                                                           smaller(kPiece, count - begin), lane);
        }
        threads.sync();
        for (std::uint32_t unit = threads.index(); unit < here; unit += threads.size())
            shared.pieces[unit] = sum_of_lanes(shared.lanes + unit * kRow);
        threads.sync();
        for (std::size_t c = threads.index(); c < columns; c += threads.size()) {
            const std::size_t begin = c * pieces < first ? first : c * pieces;
            const std::size_t end = smaller((c + 1) * pieces, first + here);
            for (std::size_t unit = begin; unit < end; ++unit)
                out[c] += shared.pieces[unit - first];
        }
    }
    threads.sync();
}

// Whether any of the threads says so.
template <class Threads>
LIBDDP_COOPERATIVE bool any(const Threads& threads, Shared& shared, bool mine) {
    if (threads.index() == 0) shared.count = 0;
    threads.sync();
    if (mine) threads.add(&shared.count, 1);
    threads.sync();
    const bool result = shared.count != 0;
    threads.sync();
    return result;
}

template <class Threads, class T>
LIBDDP_COOPERATIVE bool all_zero(const Threads& threads, Shared& shared, const T* values,
                                 std::size_t count) {
    bool other = false;
    for (std::size_t i = threads.index(); i < count; i += threads.size())
        other = other || values[i] != 0;
    return !any(threads, shared, other);
}

// The sum of four uniform numbers of 32 bits, minus its mean, and scaled from its variance of 1/3
// to 1. The sum is exact, so that what is rounded, once, is the same everywhere; a logarithm and a
// cosine would not be.
LIBDDP_EVERYWHERE double normal(std::uint64_t seed, std::uint32_t owner, std::uint32_t step,
                                std::uint64_t element) {
    const philox4x32_ctr_t counter{{static_cast<std::uint32_t>(element),
                                    static_cast<std::uint32_t>(element >> 32), owner, step}};
    const philox4x32_key_t key{
        {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
    const philox4x32_ctr_t block = philox4x32_R(10, counter, key);
    std::int64_t sum = 0;
    for (const std::uint32_t word : block.v) sum += word;
    constexpr std::int64_t kMean = (std::int64_t{1} << 33) - 2;
    constexpr double kScale = 1.7320508075688772 / 4294967296.0;  // sqrt(3) / 2^32
    return static_cast<double>(sum - kMean) * kScale;
}

// Draws the columns that are zero. A column that is zero once would be so for good: it yields
// nothing, and from nothing its successor is made.
template <class Threads, class T>
LIBDDP_COOPERATIVE void draw(const Threads& threads, Shared& shared, T* q, std::size_t rows,
                             std::size_t columns, std::uint64_t seed, std::uint32_t owner,
                             std::uint32_t step) {
    for (std::size_t k = 0; k < columns; ++k) {
        T* values = q + k * rows;
        if (!all_zero(threads, shared, values, rows)) continue;
        for (std::size_t i = threads.index(); i < rows; i += threads.size())
            values[i] = static_cast<T>(normal(seed, owner, step, std::uint64_t{i} * columns + k));
    }
}

template <class Threads, class T>
LIBDDP_COOPERATIVE double length(const Threads& threads, Shared& shared, const T* a,
                                 std::size_t count, double* work) {
    dots(threads, shared, a, a, 0, 1, count, work);
    const double result = sqrt(work[0]);
    threads.sync();
    return result;
}

// Removes from `values` what lies along the unit vector `along`.
template <class Threads, class T>
LIBDDP_COOPERATIVE void remove(const Threads& threads, Shared& shared, T* values, const T* along,
                               std::size_t count, double* work) {
    dots(threads, shared, along, values, 0, 1, count, work);
    const T part = static_cast<T>(work[0]);
    for (std::size_t i = threads.index(); i < count; i += threads.size())
        values[i] -= part * along[i];
    threads.sync();
}

// If little is left of a column beside what was removed from it, the rest holds the rounding errors
// of the removal. So it is cleaned once more, and below a few units in the last place it is nothing
// but error.
template <class Threads, class T>
LIBDDP_COOPERATIVE void gram_schmidt(const Threads& threads, Shared& shared, T* a, std::size_t rows,
                                     std::size_t columns, double epsilon, double* work) {
    constexpr double kClean = 0.125;
    constexpr double kNothing = 16 * (sizeof(T) == 8 ? 0x1p-52 : 0x1p-23);
    for (std::size_t k = 0; k < columns; ++k) {
        T* values = a + k * rows;
        const double before = length(threads, shared, values, rows, work);
        for (std::size_t other = 0; other < k; ++other)
            remove(threads, shared, values, a + other * rows, rows, work);
        double after = length(threads, shared, values, rows, work);
        if (after < kClean * before) {
            for (std::size_t other = 0; other < k; ++other)
                remove(threads, shared, values, a + other * rows, rows, work);
            after = length(threads, shared, values, rows, work);
        }
        const bool nothing = !(after > kNothing * before);
        const double divisor = after + epsilon;
        for (std::size_t i = threads.index(); i < rows; i += threads.size())
            values[i] = nothing ? T{0} : static_cast<T>(static_cast<double>(values[i]) / divisor);
        threads.sync();
    }
}

// A power of two by which the largest element comes near 1, so that no square of an element
// overflows or vanishes.
template <class Threads, class T>
LIBDDP_COOPERATIVE T scale_of(const Threads& threads, Shared& shared, const T* values,
                              std::size_t count) {
    double most = 0;
    for (std::size_t i = threads.index(); i < count; i += threads.size()) {
        const double size = fabs(static_cast<double>(values[i]));
        most = size > most ? size : most;
    }
    shared.lanes[threads.index()] = most;
    threads.sync();
    for (std::uint32_t other = 0; other < threads.size(); ++other)
        most = shared.lanes[other] > most ? shared.lanes[other] : most;
    threads.sync();
    if (!(most > 0)) return T{1};
    int exponent = -ilogb(most);
    exponent = exponent < -120 ? -120 : exponent > 120 ? 120 : exponent;
    return static_cast<T>(ldexp(1.0, exponent));
}

// Columns b[c * stride ...] become (I - tau v v^T) times what they were.
template <class Threads, class T>
LIBDDP_COOPERATIVE void reflect(const Threads& threads, Shared& shared, const T* v, double tau,
                                T* b, std::size_t stride, std::size_t columns, std::size_t count,
                                double* work) {
    dots(threads, shared, v, b, stride, columns, count, work);
    for (std::size_t c = 0; c < columns; ++c) {
        T* values = b + c * stride;
        const T part = static_cast<T>(tau * work[c]);
        for (std::size_t i = threads.index(); i < count; i += threads.size())
            values[i] -= part * v[i];
    }
    threads.sync();
}

// The Q of a QR factorization by Householder's reflections, in place. Never divides by what may be
// zero.
template <class Threads, class T>
LIBDDP_COOPERATIVE void householder(const Threads& threads, Shared& shared, T* a, std::size_t rows,
                                    std::size_t columns, double* work) {
    double* const tau = work + columns;
    const T scale = scale_of(threads, shared, a, rows * columns);
    for (std::size_t i = threads.index(); i < rows * columns; i += threads.size()) a[i] *= scale;
    threads.sync();
    // Column k becomes the k-th reflection's vector, whose first element is 1.
    for (std::size_t k = 0; k < columns; ++k) {
        T* v = a + k * rows + k;
        const std::size_t count = rows - k;
        const double size = length(threads, shared, v, count, work),
                     first = static_cast<double>(v[0]);
        const double target = first > 0 ? -size : size;
        threads.sync();
        for (std::size_t i = threads.index(); i < count; i += threads.size())
            if (i == 0)
                v[0] = 1;
            else if (size > 0)
                v[i] = static_cast<T>(static_cast<double>(v[i]) / (first - target));
        if (threads.index() == 0) tau[k] = size > 0 ? (target - first) / target : 0;
        threads.sync();
        reflect(threads, shared, v, tau[k], v + rows, rows, columns - k - 1, count, work);
    }
    // Their product, from the last to the first: only columns that it has changed already need it.
    for (std::size_t k = columns; k-- > 0;) {
        T* v = a + k * rows + k;
        const std::size_t count = rows - k;
        for (std::size_t c = k + 1 + threads.index(); c < columns; c += threads.size())
            a[c * rows + k] = 0;
        threads.sync();
        reflect(threads, shared, v, tau[k], v + rows, rows, columns - k - 1, count, work);
        for (std::size_t i = threads.index(); i < count; i += threads.size())
            v[i] = static_cast<T>(i == 0 ? 1 - tau[k] : -tau[k] * static_cast<double>(v[i]));
    }
    threads.sync();
}

}  // namespace libddp::thin
