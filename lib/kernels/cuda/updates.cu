// The kernels of optimizers.
#include "device/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/updates.h"

namespace libddp::cuda {
namespace {

template <class Method, class Format>
__global__ void __launch_bounds__(kUpdateThreads)
    update_kernel(const __grid_constant__ UpdateTable table) {
    __shared__ UpdateShared shared;
    update_block<Method, Format>(BlockThreads(), shared, table, blockIdx.x);
}

}  // namespace

void preload_updates() {
    for (const ddp_dtype values : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const ddp_update_op op :
             {DDP_UPDATE_SGD, DDP_UPDATE_ADAMW, DDP_UPDATE_LAMB_MEASURE, DDP_UPDATE_LAMB})
            with_update(op, values, values, [](auto method, auto format) {
                cudaFuncAttributes ignored;
                check(cudaFuncGetAttributes(&ignored,
                                            update_kernel<decltype(method), decltype(format)>),
                      "loading the kernel of an optimizer");
            });
}

void update(ddp_update_op op, const ddp_update* items, std::size_t count, ddp_dtype values,
            ddp_dtype gradients, cudaStream_t stream) {
    with_update(op, values, gradients, [&](auto method, auto format) {
        each_update_table(items, count, gradients, [&](const UpdateTable& table) {
            update_kernel<decltype(method), decltype(format)>
                <<<static_cast<unsigned>(table.chunks), kUpdateThreads, 0, stream>>>(table);
            check(cudaGetLastError(), "launching the kernel of an optimizer");
        });
    });
}

}  // namespace libddp::cuda
