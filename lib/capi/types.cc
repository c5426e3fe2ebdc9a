#include "ddp/types.h"

#include "kernels/dtype.h"

size_t ddp_dtype_size(ddp_dtype dtype) {
    return libddp::dtype_size(dtype);
}
const char* ddp_dtype_name(ddp_dtype dtype) {
    return libddp::dtype_name(dtype);
}
