// The vectorised path of reduce(), for real floating point.
#pragma once

#include <cstddef>

#include "ddp/types.h"

namespace libddp::cpu {

// The arguments of reduce_to().
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

}  // namespace libddp::cpu
