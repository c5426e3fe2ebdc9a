// Arithmetic on a device, in the order of a stream: kernels/device_kernels.h says what each function computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/stream.h"
#include "kernels/device_kernels.h"

namespace libddp::on_device {

// A stream on a device that has the kernels' code. Throws as DeviceStream::create().
StreamPtr make_stream(const ddp_device& device);

void transfer(const DeviceStream& stream, const std::vector<ddp_segment>& segments, ddp_dtype src_dtype, ddp_dtype dst_dtype,
              double scale);
void reduce(const DeviceStream& stream, void* out, const void* const* inputs, std::size_t input_count, std::size_t count,
            ddp_dtype dtype, ddp_reduce_op op, double scale);
std::size_t encode_scratch(const DeviceStream& stream, const ddp_codec_batch& batch);
void encode(const DeviceStream& stream, const ddp_codec_batch& batch);
void decode(const DeviceStream& stream, const ddp_codec_batch& batch, double scale);
void low_rank(const DeviceStream& stream, ddp_low_rank_op op, const std::vector<ddp_low_rank>& items, ddp_dtype dtype);
void thin(const DeviceStream& stream, ddp_thin_op op, const std::vector<ddp_thin>& items, ddp_dtype dtype,
          const ddp_thin_rules& rules);
void leave_out(const DeviceStream& stream, const std::vector<ddp_doubt>& items, ddp_dtype dtype, const std::uint32_t* only_if);

}  // namespace libddp::on_device
