// Norms and the steps of optimizers on the fake devices: the CPU's own functions, on the second
// mapping, in the order of a stream.
#pragma once

#include "kernels/device_kernels.h"

namespace fake {

ddp_status norm_terms(int32_t device, void* stream, const ddp_norm_item* items, size_t count,
                      ddp_dtype dtype, ddp_norm_kind kind, void* scratch,
                      ddp_device_failure* failure);
ddp_status update(int32_t device, void* stream, ddp_update_op op, const ddp_update* items,
                  size_t count, ddp_dtype values, ddp_dtype gradients, ddp_device_failure* failure);

}  // namespace fake
