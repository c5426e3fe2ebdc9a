// The front of the arithmetic: what is supported, and which path does it.
#include <cstring>

#include "kernels/arithmetic.h"
#include "kernels/cpu/paths.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::cpu {

bool can_reduce(ddp_dtype dtype, ddp_reduce_op op) {
    if (dtype_size(dtype) == 0) return false;
    if (op == DDP_SUM || op == DDP_PROD) return true;
    return (op == DDP_MIN || op == DDP_MAX) && !is_complex(dtype);
}

void reduce(void* out, const void* const* inputs, std::size_t input_count, std::size_t count, ddp_dtype dtype,
            ddp_reduce_op op, double scale) {
    reduce_to(&out, 1, inputs, input_count, count, dtype, op, scale);
}

void reduce_to(void* const* outs, std::size_t out_count, const void* const* inputs, std::size_t input_count,
               std::size_t count, ddp_dtype dtype, ddp_reduce_op op, double scale) {
    if (!can_reduce(dtype, op))
        fail(DDP_ERROR_UNSUPPORTED, "reduction ", op, " of elements of type ", dtype_name(dtype), " is not supported");
    if (count == 0) return;
    if (input_count == 1 && scale == 1) {
        // memmove: out may be the input itself.
        for (std::size_t k = 0; k < out_count; ++k)
            if (outs[k] != inputs[0]) std::memmove(outs[k], inputs[0], count * dtype_size(dtype));
        return;
    }
    Reduction r{outs, out_count, inputs, input_count, count, dtype, op, scale};
    if (is_complex(dtype) && (op != DDP_PROD || input_count == 1)) {
        r.count = 2 * count;
        r.dtype = dtype == DDP_C64 ? DDP_F32 : DDP_F64;
        r.op = DDP_SUM;
        reduce_simd(r);
    } else if (is_floating(dtype) && !is_complex(dtype)) {
        reduce_simd(r);
    } else {
        reduce_plain(r);
    }
}

void scale_copy(void* dst, const void* src, std::size_t count, ddp_dtype dtype, double scale) {
    reduce(dst, &src, 1, count, dtype, DDP_SUM, scale);
}

}  // namespace libddp::cpu
