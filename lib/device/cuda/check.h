// The CUDA runtime's errors as libddp's.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "util/error.h"

namespace libddp::cuda {

// Throws what a call of the CUDA runtime has returned: OUT_OF_MEMORY, or UNAVAILABLE. `call`: its name.
void check(cudaError_t code, const char* call);

// How many devices there are, at least 1. Throws UNAVAILABLE, which says why there is none: no driver, an older one than the module
// needs, none visible.
int device_count();

// "13.0" from 13000.
std::string version_text(int version);

}  // namespace libddp::cuda
