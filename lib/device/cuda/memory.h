// Memory: functions of ddp_device_module.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "device/device_module.h"

namespace libddp::cuda {

ddp_status device_of(const void* pointer, ddp_device* device, ddp_device_failure* failure);
ddp_status allocate(std::int32_t device, void* stream, std::size_t bytes, void** memory,
                    ddp_device_failure* failure);
void deallocate(std::int32_t device, void* stream, void* memory);
ddp_status allocate_host(std::size_t bytes, void** memory, ddp_device_failure* failure);
void deallocate_host(void* memory);
ddp_status copy(std::int32_t device, void* stream, void* dst, const void* src, std::size_t bytes,
                ddp_copy_kind kind, ddp_device_failure* failure);

// Memory in the order of a stream, from a pool of libddp's own, on the current device, which is
// `device`. Not zeroed; freed with cudaFreeAsync. Throws OUT_OF_MEMORY.
void* allocate_in_order(int device, std::size_t bytes, cudaStream_t stream);

}  // namespace libddp::cuda
