// Memory in the order of a stream, from a pool of libddp's own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace libddp::cuda {

// On the current device, which is `device`. Not zeroed; freed with cudaFreeAsync. Throws OUT_OF_MEMORY.
void* allocate_in_order(int device, std::size_t bytes, cudaStream_t stream);

}  // namespace libddp::cuda
