// Copies between memory of a device and any memory of the host, for which the caller waits: not for gradients, but for what is
// saved and loaded between steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/stream.h"

namespace libddp {

// In the order of the stream. Throws TIMEOUT if all that is before it on the stream, and the copy, take longer.
void copy_out(const DeviceStream& stream, void* host, const void* memory, std::size_t bytes, std::int64_t timeout_ms);
void copy_in(const DeviceStream& stream, void* memory, const void* host, std::size_t bytes, std::int64_t timeout_ms);

}  // namespace libddp
