// Facts about element types.
#pragma once

#include <cstddef>

#include "ddp/types.h"

namespace libddp {

std::size_t dtype_size(ddp_dtype dtype);  // 0 if unknown
const char* dtype_name(ddp_dtype dtype);  // "unknown" if unknown
bool is_floating(ddp_dtype dtype);        // real or complex floating point
bool is_complex(ddp_dtype dtype);
bool is_real(ddp_dtype dtype);  // real floating point

}  // namespace libddp
