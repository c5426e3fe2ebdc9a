// Gradients of low rank on the fake devices: the CPU's own functions, on the second mapping, in the
// order of a stream.
#pragma once

#include "kernels/device_kernels.h"

namespace fake {

ddp_status low_rank(int32_t device, void* stream, ddp_low_rank_op op, const ddp_low_rank* items,
                    size_t count, ddp_dtype dtype, ddp_device_failure* failure);
ddp_status thin(int32_t device, void* stream, ddp_thin_op op, const ddp_thin* items, size_t count,
                ddp_dtype dtype, const ddp_thin_rules* rules, ddp_device_failure* failure);
ddp_status leave_out(int32_t device, void* stream, const ddp_doubt* items, size_t count,
                     ddp_dtype dtype, const uint32_t* only_if, ddp_device_failure* failure);

}  // namespace fake
