// The kernels that run on the GPU. Each function enqueues on a stream of the current device and
// returns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ddp/types.h"
#include "kernels/device_kernels.h"

namespace libddp::cuda {

// dst[i] = (dst_dtype)(scale * src[i]) for all segments, as device_kernels.h says: packs, unpacks,
// scales, converts, zeroes.
void transfer(const ddp_segment* segments, std::size_t count, ddp_dtype src_dtype,
              ddp_dtype dst_dtype, double scale, cudaStream_t stream);

// out[i] = scale * (inputs[0][i] op inputs[1][i] op ...), strictly in this order.
void reduce(void* out, const void* const* inputs, std::size_t input_count, std::size_t count,
            ddp_dtype dtype, ddp_reduce_op op, double scale, cudaStream_t stream);

// Brings their code to the current device. A kernel that comes only when it is first launched may
// wait for those that are running, and they perhaps for another rank.
void preload_transfer();
void preload_reduce();
void preload_norms();
void preload_updates();

// As device_kernels.h says.
void low_rank(ddp_low_rank_op op, const ddp_low_rank* items, std::size_t count, ddp_dtype dtype,
              cudaStream_t stream);
void thin(ddp_thin_op op, const ddp_thin* items, std::size_t count, ddp_dtype dtype,
          const ddp_thin_rules& rules, cudaStream_t stream);
void leave_out(const ddp_doubt* items, std::size_t count, ddp_dtype dtype,
               const std::uint32_t* only_if, cudaStream_t stream);
void spoil(void* memory, std::size_t bytes, const std::uint32_t* spoiled, cudaStream_t stream);
void norm_terms(const ddp_norm_item* items, std::size_t count, ddp_dtype dtype, ddp_norm_kind kind,
                void* scratch, cudaStream_t stream);
void update(ddp_update_op op, const ddp_update* items, std::size_t count, ddp_dtype values,
            ddp_dtype gradients, cudaStream_t stream);
void encode(const ddp_codec_batch& batch, cudaStream_t stream);
void decode(const ddp_codec_batch& batch, double scale, cudaStream_t stream);
void recode(const ddp_codec_batch& batch, double scale, cudaStream_t stream);

}  // namespace libddp::cuda
