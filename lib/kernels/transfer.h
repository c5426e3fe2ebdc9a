// Elements of one type from place to place, on the CPU or on a device.
#pragma once

#include <cstring>
#include <vector>

#include "device/stream.h"
#include "kernels/on_device.h"
#include "kernels/dtype.h"

namespace libddp {

// For all segments dst[i] = src[i], or 0 without a source: in the order of the stream, or at once without one.
inline void transfer(const StreamPtr& stream, const std::vector<ddp_segment>& segments, ddp_dtype dtype) {
    if (stream) return on_device::transfer(*stream, segments, dtype, dtype, 1);
    for (const ddp_segment& s : segments) {
        if (s.count == 0) continue;
        if (s.src)
            std::memcpy(s.dst, s.src, s.count * dtype_size(dtype));
        else
            std::memset(s.dst, 0, s.count * dtype_size(dtype));
    }
}

}  // namespace libddp
