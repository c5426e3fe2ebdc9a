// The kernel that reduces in rank order.
#include "device/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduction.h"

namespace libddp::cuda {
namespace {

template <class Format>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(const __grid_constant__ ReduceTable table) {
    reduce_thread<Format>(table, static_cast<std::uint64_t>(blockIdx.x) * kThreads + threadIdx.x);
}

}  // namespace

void preload_reduce() {
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        with_reduce_format(dtype, DDP_SUM, [](auto format) {
            cudaFuncAttributes ignored;
            check(cudaFuncGetAttributes(&ignored, reduce_kernel<decltype(format)>),
                  "loading the reduce kernel");
        });
}

void reduce(void* out, const void* const* inputs, std::size_t input_count, std::size_t count,
            ddp_dtype dtype, ddp_reduce_op op, double scale, cudaStream_t stream) {
    const ReduceTable table = reduce_table(out, inputs, input_count, count, dtype, op, scale);
    if (count == 0) return;
    with_reduce_format(dtype, op, [&](auto format) {
        using Format = decltype(format);
        const std::uint64_t per_block = std::uint64_t{kReduceElements<Format>} * kThreads;
        const auto blocks = static_cast<unsigned>((table.count + per_block - 1) / per_block);
        reduce_kernel<Format><<<blocks, kThreads, 0, stream>>>(table);
        check(cudaGetLastError(), "launching the reduce kernel");
    });
}

}  // namespace libddp::cuda
