// The kernels that count terms of norms.
#include "device/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/norms.h"

namespace libddp::cuda {
namespace {

template <class Kind, class Format>
__global__ void __launch_bounds__(kNormThreads)
    norm_parts_kernel(const __grid_constant__ NormTable table) {
    __shared__ NormShared shared;
    sum_norm_parts<Kind, Format>(BlockThreads(), shared, table, blockIdx.x);
}

// A block for each list.
template <class Kind>
__global__ void __launch_bounds__(kNormThreads)
    norm_rows_kernel(const __grid_constant__ NormTable table) {
    __shared__ NormShared shared;
    sum_norm_row<Kind>(BlockThreads(), shared, table, blockIdx.x);
}

}  // namespace

void preload_norms() {
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const ddp_norm_kind kind : {DDP_NORM_MAGNITUDES, DDP_NORM_SQUARES, DDP_NORM_LARGEST})
            with_norm_format(dtype, kind, [](auto one, auto format) {
                using Kind = decltype(one);
                cudaFuncAttributes ignored;
                check(cudaFuncGetAttributes(&ignored, norm_parts_kernel<Kind, decltype(format)>),
                      "loading a kernel for norms");
                check(cudaFuncGetAttributes(&ignored, norm_rows_kernel<Kind>),
                      "loading a kernel for norms");
            });
}

void norm_terms(const ddp_norm_item* items, std::size_t count, ddp_dtype dtype, ddp_norm_kind kind,
                void* scratch, cudaStream_t stream) {
    with_norm_format(dtype, kind, [&](auto one, auto format) {
        using Kind = decltype(one);
        each_norm_table(items, count, dtype, kind, scratch, [&](const NormTable& table) {
            if (table.chunks > 0)
                norm_parts_kernel<Kind, decltype(format)>
                    <<<static_cast<unsigned>(blocks_of(table)), kNormThreads, 0, stream>>>(table);
            norm_rows_kernel<Kind>
                <<<static_cast<unsigned>(table.rows), kNormThreads, 0, stream>>>(table);
            check(cudaGetLastError(), "launching a kernel for norms");
        });
    });
}

}  // namespace libddp::cuda
