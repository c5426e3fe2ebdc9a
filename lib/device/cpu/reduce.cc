// The front of the arithmetic: what is supported, and which path does it.
#include <cstring>

#include "device/cpu/paths.h"
#include "device/dtype.h"
#include "device/kernels.h"
#include "util/error.h"

namespace libddp::cpu {

bool can_reduce(ddp_dtype dtype, ddp_reduce_op op) {
    if (dtype_size(dtype) == 0) return false;
    if (op == DDP_SUM || op == DDP_PROD) return true;
    return (op == DDP_MIN || op == DDP_MAX) && !is_complex(dtype);
}

void reduce(void* out, const void* const* inputs, std::size_t input_count, std::size_t count, ddp_dtype dtype,
            ddp_reduce_op op, double scale) {
    if (!can_reduce(dtype, op))
        fail(DDP_ERROR_UNSUPPORTED, "reduction ", op, " of elements of type ", dtype_name(dtype), " is not supported");
    if (count == 0) return;
    if (input_count == 1 && scale == 1) {
        // memmove: out may be the input itself.
        if (out != inputs[0]) std::memmove(out, inputs[0], count * dtype_size(dtype));
        return;
    }
    if (is_complex(dtype)) {
        if (op == DDP_PROD && input_count > 1)
            reduce_plain(out, inputs, input_count, count, dtype, op, scale);
        else
            reduce_simd(out, inputs, input_count, 2 * count, dtype == DDP_C64 ? DDP_F32 : DDP_F64, DDP_SUM, scale);
    } else if (is_floating(dtype)) {
        reduce_simd(out, inputs, input_count, count, dtype, op, scale);
    } else {
        reduce_plain(out, inputs, input_count, count, dtype, op, scale);
    }
}

void scale_copy(void* dst, const void* src, std::size_t count, ddp_dtype dtype, double scale) {
    reduce(dst, &src, 1, count, dtype, DDP_SUM, scale);
}

}  // namespace libddp::cpu
