// What reduce() and convert() are made of: the vectorised path for real floating point and the plain path for the rest.
#pragma once

#include <cstddef>

#include "ddp/types.h"

namespace libddp::cpu {

// What reduce_to() was asked for.
struct Reduction {
    void* const* outs;
    std::size_t out_count;
    const void* const* inputs;
    std::size_t input_count;
    std::size_t count;
    ddp_dtype dtype;
    ddp_reduce_op op;
    double scale;
};

// f16, bf16, f32, f64 and SUM, PROD, MIN, MAX.
void reduce_simd(const Reduction& r);

// i32, i64, u8 and all four; c64, c128 and PROD.
void reduce_plain(const Reduction& r);

}  // namespace libddp::cpu
