// Memory that NCCL reads and writes without copies of its own, where the hardware can. On the current device.
#pragma once

#include <cstddef>

#include "backends/nccl/communicator.h"

namespace libddp::cuda {

// Ready for every stream. Null if NCCL has none.
void* allocate_zeroed_for_nccl(std::size_t bytes);
void free_for_nccl(void* memory);

// Null if it cannot be registered, which costs speed alone. Throws if the communicator is broken.
void* register_memory(Communicator& communicator, void* memory, std::size_t bytes, const Deadline& deadline);
// Does nothing if the communicator has ended: its registrations have, too.
void unregister_memory(Communicator& communicator, void* handle);

}  // namespace libddp::cuda
