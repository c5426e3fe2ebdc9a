// The kernel that packs, unpacks, scales, converts and zeroes.
#include "device/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tables.h"

namespace libddp::cuda {
namespace {

template <class From, class To, bool kScale>
__global__ void __launch_bounds__(kThreads) transfer_kernel(const __grid_constant__ Table table) {
    transfer_thread<From, To, kScale>(table, blockIdx.x, threadIdx.x);
}

constexpr unsigned kSpoilBlocks = 64;

// The host writes *spoiled at any time.
__global__ void __launch_bounds__(kThreads)
    spoil_kernel(unsigned char* memory, std::size_t bytes, const volatile std::uint32_t* spoiled) {
    if (*spoiled == 0) return;
    for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < bytes;
         i += std::size_t{gridDim.x} * kThreads)
        memory[i] = 0xff;
}

constexpr ddp_dtype kFloating[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64};

}  // namespace

void preload_transfer() {
    for (const ddp_dtype src : kFloating)
        for (const ddp_dtype dst : kFloating)
            for (const double scale : {1.0, 0.5})
                with_formats(src, dst, scale, [](auto from, auto to, auto scales) {
                    cudaFuncAttributes ignored;
                    check(
                        cudaFuncGetAttributes(
                            &ignored,
                            transfer_kernel<decltype(from), decltype(to), decltype(scales)::value>),
                        "loading the transfer kernel");
                });
    cudaFuncAttributes ignored;
    check(cudaFuncGetAttributes(&ignored, spoil_kernel), "loading the kernel that spoils");
}

void spoil(void* memory, std::size_t bytes, const std::uint32_t* spoiled, cudaStream_t stream) {
    spoil_kernel<<<kSpoilBlocks, kThreads, 0, stream>>>(static_cast<unsigned char*>(memory), bytes,
                                                        spoiled);
    check(cudaGetLastError(), "launching the kernel that spoils");
}

void transfer(const ddp_segment* segments, std::size_t count, ddp_dtype src_dtype,
              ddp_dtype dst_dtype, double scale, cudaStream_t stream) {
    const Factor factor = factor_of(scale, src_dtype);
    with_formats(src_dtype, dst_dtype, scale, [&](auto from, auto to, auto scales) {
        using From = decltype(from);
        using To = decltype(to);
        each_table(
            segments, count, sizeof(typename To::Stored), kChunkElements<To>,
            is_complex(src_dtype) ? 2 : 1, factor, [&](const Table& table) {
                transfer_kernel<From, To, decltype(scales)::value>
                    <<<static_cast<unsigned>(blocks_of(table)), kThreads, 0, stream>>>(table);
                check(cudaGetLastError(), "launching the transfer kernel");
            });
    });
}

}  // namespace libddp::cuda
