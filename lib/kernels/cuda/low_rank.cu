// The kernels of PowerSGD's three products with a large matrix.
#include "device/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/low_rank.h"

namespace libddp::cuda {
namespace {

template <class Product, class Format, int kTile>
__global__ void __launch_bounds__(Product::kTeam) low_rank_kernel(const __grid_constant__ LowRankTable table) {
    __shared__ typename Product::template Shared<typename Format::Compute, kTile> shared;
    run_block<Product, Format, kTile>(BlockTeam(), shared, table, blockIdx.x);
}

}  // namespace

void low_rank(ddp_low_rank_op op, const ddp_low_rank* items, std::size_t count, ddp_dtype dtype, cudaStream_t stream) {
    each_low_rank_launch(op, items, count, dtype, [&](auto product, auto format, auto tile, const LowRankTable& table) {
        using Product = decltype(product);
        low_rank_kernel<Product, decltype(format), decltype(tile)::value>
            <<<static_cast<unsigned>(table.blocks), Product::kTeam, 0, stream>>>(table);
        check(cudaGetLastError(), "launching a low-rank kernel");
    });
}

}  // namespace libddp::cuda
