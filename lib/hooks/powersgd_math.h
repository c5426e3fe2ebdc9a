// The small matrices of PowerSGD: how Q is drawn, and how P and Q are made orthogonal. All ranks compute these from the
// same numbers and must get the same bits: one order of operations, no vector code that is chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ddp/types.h"

namespace libddp::powersgd {

// A matrix with few columns, each contiguous, one after the other. data is aligned to 16 bytes, so that the order of
// sums does not depend on where it lies.
struct Thin {
    void* data = nullptr;
    ddp_dtype dtype = DDP_F32;  // f32 or f64
    std::size_t rows = 0, columns = 0;

    std::size_t count() const { return rows * columns; }
};

// Which numbers are drawn: docs/hooks.md has the formula.
struct Draw {
    std::uint64_t seed = 0;
    std::uint32_t owner = 0;  // a parameter, or with whole buckets a bucket
    std::uint32_t step = 0;
};

enum class Method { kGramSchmidt, kQr };

// Fills every column with numbers of mean 0 and variance 1.
void draw_columns(const Thin& q, const Draw& draw);
// The same for columns that are zero. A column that is zero once would be so for good: it yields nothing, and from
// nothing its successor is made.
void draw_zero_columns(const Thin& q, const Draw& draw);

// Columns of length 1 that are orthogonal to each other and span what they spanned. epsilon (Gram-Schmidt only) is
// added to the length by which a column is divided. With Gram-Schmidt a column that is zero, or depends on those before
// it but for rounding errors, becomes zero; with QR it becomes some column that is orthogonal to the others.
// workspace: as many elements as the matrix, aligned like it.
void orthogonalize(const Thin& a, Method method, double epsilon, void* workspace);

// f16, bf16, f32 or f64.
bool all_finite(const void* data, ddp_dtype dtype, std::size_t count);

// Fills f16, bf16, f32 or f64 with a quiet NaN.
void fill_nan(void* data, ddp_dtype dtype, std::size_t count);

}  // namespace libddp::powersgd
