// Arithmetic on CPU memory: reduce, scale, copy, convert. SIMD with run-time dispatch; any
// alignment of at least the element's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ddp/types.h"

namespace libddp::cpu {

// Whether reduce() implements op for dtype: all but MIN and MAX of complex numbers. AVG is not an
// op here: use scale.
bool can_reduce(ddp_dtype dtype, ddp_reduce_op op);

// out[i] = scale * (inputs[0][i] op inputs[1][i] op ...), strictly in this order, so that the bits
// depend on nothing else. f16 and bf16 are accumulated in f32 and rounded once, to nearest even.
// Integers wrap on overflow; scale is then 1 or 1/k with integral k, and divides truncating toward
// zero. out may be one of the inputs (exactly), but may not overlap otherwise. input_count >= 1.
// Unsupported (dtype, op): throws libddp::Error UNSUPPORTED.
void reduce(void* out, const void* const* inputs, std::size_t input_count, std::size_t count,
            ddp_dtype dtype, ddp_reduce_op op, double scale);

// The same into several places in one pass, for memory that ranks share. Each of outs may be one of
// the inputs.
void reduce_to(void* const* outs, std::size_t out_count, const void* const* inputs,
               std::size_t input_count, std::size_t count, ddp_dtype dtype, ddp_reduce_op op,
               double scale);

// dst[i] = scale * src[i], with the rules of reduce(). dst may equal src. With scale 1 it is a
// plain copy.
void scale_copy(void* dst, const void* src, std::size_t count, ddp_dtype dtype, double scale);

// The first element that is NaN or infinite, of a complex number in either part; `count` if there
// is none, as among integers.
std::size_t first_nonfinite(const void* data, std::size_t count, ddp_dtype dtype);

// scale_copy(), and first_nonfinite() of what it writes, in one pass. Behind the element that it
// finds dst is unspecified.
std::size_t scale_copy_checked(void* dst, const void* src, std::size_t count, ddp_dtype dtype,
                               double scale);

// The terms of which norms are made: the sum of |x|, the sum of |x|^2, or the largest |x|.
enum class NormKind : std::uint8_t { kMagnitudes, kSquares, kLargest };

// Norms of a list of floating-point numbers, computed in f64. In an order that depends on nothing but
// the list, so that the bits are the same on every machine. A NaN makes it NaN.
double norm_terms(const void* data, std::size_t count, ddp_dtype dtype, NormKind kind);

// The same of two lists together, from theirs.
double add_norm_terms(double a, double b, NormKind kind);

// dst[i] = (dst_dtype) src[i] among f16, bf16, f32, f64 (and among the complex types), rounded to
// nearest even. Infinities and NaNs stay what they are. Buffers may not overlap. Otherwise
// UNSUPPORTED.
void convert(void* dst, ddp_dtype dst_dtype, const void* src, ddp_dtype src_dtype,
             std::size_t count);

// A sum of outer products: out[i * m + j] becomes scale * (start + sum over k < rows of left[k * n
// + i] * right[k * m + j]), where start is 0, or with `add` what was there. Strictly in the order
// of k, and rounded after every multiplication and addition, so that the bits depend on nothing
// else. f32 and f64; otherwise UNSUPPORTED. Buffers may not overlap.
void outer_products(void* out, const void* left, const void* right, std::size_t rows, std::size_t n,
                    std::size_t m, ddp_dtype dtype, bool add, double scale);

// The outer optimizer of include/ddp/averager.h.
struct OuterStep {
    bool nesterov = false;
    double rate = 1;
    double momentum = 0;
    double inner_rate = 1;
};

// One step of it. values: the average; then the new outer parameters. outer: the old ones; then the
// new ones. momentum: may be null if step.momentum is 0. f32 and f64; otherwise UNSUPPORTED.
// Computed in f64 and rounded once. The buffers are different ones.
void outer_step(void* values, void* outer, void* momentum, std::size_t count, ddp_dtype dtype,
                const OuterStep& step);

// values[i] = from[i] - values[i]: between parameters and their outer gradients. f32 and f64;
// otherwise UNSUPPORTED.
void subtract_from(void* values, const void* from, std::size_t count, ddp_dtype dtype);

// values[i] = weight * values[i] + (1 - weight) * other[i]. Computed in f64 and rounded once. f32
// and f64; otherwise UNSUPPORTED.
void mix(void* values, const void* other, std::size_t count, ddp_dtype dtype, double weight);

// The instruction set that dispatch chose ("AVX2", ...), for logs and benchmarks.
const char* instruction_set();

}  // namespace libddp::cpu
