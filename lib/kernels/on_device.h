// Arithmetic on a device, in the order of a stream: kernels/device_kernels.h says what each
// function computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "device/stream.h"
#include "kernels/device_kernels.h"
#include "kernels/dtype.h"

namespace libddp::on_device {

// A stream on a device that has the kernels' code. Throws as DeviceStream::create().
StreamPtr make_stream(const ddp_device& device);

void transfer(const DeviceStream& stream, const std::vector<ddp_segment>& segments,
              ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale);
// dst = src, or (add) dst += src: in the order of a stream of the program's.
void copy(const ddp_device& device, void* stream, void* dst, const void* src, std::size_t count,
          ddp_dtype dtype, bool add);
void reduce(const DeviceStream& stream, void* out, const void* const* inputs,
            std::size_t input_count, std::size_t count, ddp_dtype dtype, ddp_reduce_op op,
            double scale);
std::size_t encode_scratch(const DeviceStream& stream, const ddp_codec_batch& batch);
void encode(const DeviceStream& stream, const ddp_codec_batch& batch);
void decode(const DeviceStream& stream, const ddp_codec_batch& batch, double scale);
void recode(const DeviceStream& stream, const ddp_codec_batch& batch, double scale);
void low_rank(const DeviceStream& stream, ddp_low_rank_op op,
              const std::vector<ddp_low_rank>& items, ddp_dtype dtype);
void thin(const DeviceStream& stream, ddp_thin_op op, const std::vector<ddp_thin>& items,
          ddp_dtype dtype, const ddp_thin_rules& rules);
void leave_out(const DeviceStream& stream, const std::vector<ddp_doubt>& items, ddp_dtype dtype,
               const std::uint32_t* only_if);
void spoil(const DeviceStream& stream, void* memory, std::size_t bytes,
           const std::uint32_t* spoiled);
// Scratch bytes that norm_terms() needs.
std::size_t norm_scratch(const std::vector<ddp_norm_item>& items, ddp_dtype dtype,
                         ddp_norm_kind kind);
void norm_terms(const DeviceStream& stream, const std::vector<ddp_norm_item>& items,
                ddp_dtype dtype, ddp_norm_kind kind, void* scratch);
void update(const DeviceStream& stream, ddp_update_op op, const std::vector<ddp_update>& items,
            ddp_dtype values, ddp_dtype gradients);

}  // namespace libddp::on_device

namespace libddp {

// Elements of one type from place to place, on the CPU or on a device.

// For all segments dst[i] = src[i], or 0 without a source: in the order of the stream, or at once
// without one.
inline void transfer(const StreamPtr& stream, const std::vector<ddp_segment>& segments,
                     ddp_dtype dtype) {
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
