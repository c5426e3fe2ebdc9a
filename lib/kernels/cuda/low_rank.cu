// The kernels of PowerSGD: its three products with a large matrix, thin matrices, and what may not
// be finite.
#include "device/cuda/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/low_rank.h"

namespace libddp::cuda {
namespace {

template <class Product, class Format, std::uint32_t kTile>
__global__ void __launch_bounds__(Product::kThreads)
    low_rank_kernel(const __grid_constant__ LowRankTable table) {
    __shared__ typename Product::template Shared<typename Format::Compute, kTile> shared;
    run_block<Product, Format, kTile>(BlockThreads(), shared, table, blockIdx.x);
}

// A block for each matrix.
template <class Format>
__global__ void __launch_bounds__(kThinThreads)
    thin_kernel(ddp_thin_op op, const __grid_constant__ ThinTable table) {
    __shared__ thin::Shared shared;
    run_thin<Format>(BlockThreads(), shared, op, table.row[blockIdx.x], table.rules);
}

template <class Format>
__global__ void __launch_bounds__(kThinThreads)
    leave_out_kernel(const __grid_constant__ DoubtTable table) {
    __shared__ thin::Shared shared;
    run_leave_out<Format>(BlockThreads(), shared, table.row[blockIdx.x], table.only_if);
}

}  // namespace

void low_rank(ddp_low_rank_op op, const ddp_low_rank* items, std::size_t count, ddp_dtype dtype,
              cudaStream_t stream) {
    each_low_rank_launch(
        op, items, count, dtype,
        [&](auto product, auto format, auto tile, const LowRankTable& table) {
            using Product = decltype(product);
            low_rank_kernel<Product, decltype(format), decltype(tile)::value>
                <<<static_cast<unsigned>(table.blocks), Product::kThreads, 0, stream>>>(table);
            check(cudaGetLastError(), "launching a low-rank kernel");
        });
}

void thin(ddp_thin_op op, const ddp_thin* items, std::size_t count, ddp_dtype dtype,
          const ddp_thin_rules& rules, cudaStream_t stream) {
    each_thin_table(items, count, rules, [&](const ThinTable& table) {
        const auto launch = [&](auto format) {
            thin_kernel<decltype(format)>
                <<<static_cast<unsigned>(table.rows), kThinThreads, 0, stream>>>(op, table);
        };
        dtype == DDP_F64 ? launch(F64()) : launch(F32());
        check(cudaGetLastError(), "launching the kernel for P and Q");
    });
}

void leave_out(const ddp_doubt* items, std::size_t count, ddp_dtype dtype,
               const std::uint32_t* only_if, cudaStream_t stream) {
    each_doubt_table(items, count, only_if, [&](const DoubtTable& table) {
        with_real_format(dtype, [&](auto format) {
            leave_out_kernel<decltype(format)>
                <<<static_cast<unsigned>(table.rows), kThinThreads, 0, stream>>>(table);
        });
        check(cudaGetLastError(), "launching the kernel that looks for NaN");
    });
}

}  // namespace libddp::cuda
