// The kernels of the codecs.
#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/codecs.h"
#include "kernels/cuda/kernels.h"

namespace libddp::cuda {
namespace {

constexpr std::uint64_t kMostBlocks = 1u << 20;  // of one kernel; a block may have several chunks

template <class Kernel, class AnyTable>
__global__ void __launch_bounds__(Kernel::kThreads)
    codec_kernel(const __grid_constant__ AnyTable table) {
    __shared__ typename Kernel::Shared shared;
    work_on_chunks<Kernel>(BlockThreads(), shared, table, blockIdx.x, gridDim.x);
}

struct OnStream {
    template <class Kernel, class AnyTable>
    void start(const AnyTable& table) const {
        if (table.chunks == 0) return;
        const auto blocks = static_cast<unsigned>(std::min(table.chunks, kMostBlocks));
        codec_kernel<Kernel, AnyTable><<<blocks, Kernel::kThreads, 0, stream>>>(table);
        check(cudaGetLastError(), "launching a codec's kernel");
    }
    void zero(void* memory, std::size_t bytes) const {
        check(cudaMemsetAsync(memory, 0, bytes, stream), "cudaMemsetAsync");
    }

    cudaStream_t stream;
};

}  // namespace

void encode(const ddp_codec_batch& batch, cudaStream_t stream) {
    encode_batch(batch, OnStream{stream});
}

void decode(const ddp_codec_batch& batch, double scale, cudaStream_t stream) {
    decode_batch(batch, scale, OnStream{stream});
}

void recode(const ddp_codec_batch& batch, double scale, cudaStream_t stream) {
    recode_batch(batch, scale, OnStream{stream});
}

}  // namespace libddp::cuda
