// Facts about element types.
#pragma once

#include <cstddef>

#include "ddp/types.h"

namespace libddp {

std::size_t dtype_size(ddp_dtype dtype);       // 0 if unknown
std::size_t dtype_alignment(ddp_dtype dtype);  // of a complex number: of its parts
const char* dtype_name(ddp_dtype dtype);       // "unknown" if unknown
bool is_floating(ddp_dtype dtype);             // real or complex floating point
bool is_complex(ddp_dtype dtype);
bool is_real(ddp_dtype dtype);  // real floating point

// The type in which hooks compute and keep their error feedback: f64 for f64, f32 for everything
// else.
constexpr ddp_dtype compute_dtype(ddp_dtype gradients) {
    return gradients == DDP_F64 ? DDP_F64 : DDP_F32;
}

// The type of the two parts of a complex number; otherwise the type itself.
constexpr ddp_dtype dtype_of_parts(ddp_dtype dtype) {
    if (dtype == DDP_C64) return DDP_F32;
    return dtype == DDP_C128 ? DDP_F64 : dtype;
}

}  // namespace libddp
