// Products of a large matrix with thin ones, for gradients that travel as P Q^T (PowerSGD). Each
// reads or writes the large matrix once. SIMD with run-time dispatch; any alignment of at least the
// element's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/types.h"
#include "kernels/device_kernels.h"
#include "kernels/everywhere.h"

namespace libddp::cpu {

// M = gradient + error, row-major. The sum is formed on the fly, wherever M is read, and never
// stored.
struct LowRankMatrix {
    void* gradient = nullptr;
    ddp_dtype dtype = DDP_F32;  // of the gradient: f16, bf16, f32, f64
    void* error = nullptr;      // f64 for a gradient of f64, otherwise f32; null: M is the gradient
    std::size_t rows = 0, columns = 0;
};

// A matrix of `rank` columns in the type of the error. Each column is contiguous; they begin
// `stride` elements apart.
struct ThinMatrix {
    void* data = nullptr;
    std::size_t stride = 0;
};

// P = M Q. A NaN or an infinity in a row of M makes that row of P NaN or infinite. The order of the
// sums, and so the last bits, depend on the instruction set.
void low_rank_project(const LowRankMatrix& m, const ThinMatrix& q, const ThinMatrix& p,
                      std::size_t rank);

// Q += M^T P. Bits as above.
void low_rank_project_back(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                           std::size_t rank);

// gradient = P Q^T, rounded to nearest even for f16 and bf16, and error = M - P own_q^T. Every
// product and every sum is rounded by itself and they are added in the order of the columns: the
// bits depend on nothing but the arguments. Without an error own_q is not read.
void low_rank_restore(const LowRankMatrix& m, const ThinMatrix& p, const ThinMatrix& q,
                      const ThinMatrix& own_q, std::size_t rank);

}  // namespace libddp::cpu

namespace libddp {

// The operations of hooks on gradients of low rank, for lists of matrices as device_kernels.h
// describes them: here on memory of the CPU, at once. The functions of on_device.h with the same
// names do it on a device, in the order of a stream.

// Into how many parts a device cuts so many rows.
LIBDDP_EVERYWHERE std::size_t low_rank_parts(std::size_t rows) {
    return (rows + DDP_LOW_RANK_PART_ROWS - 1) / DDP_LOW_RANK_PART_ROWS;
}

namespace cpu {

void low_rank(ddp_low_rank_op op, const std::vector<ddp_low_rank>& items, ddp_dtype dtype);
void thin(ddp_thin_op op, const std::vector<ddp_thin>& items, ddp_dtype dtype,
          const ddp_thin_rules& rules);
void leave_out(const std::vector<ddp_doubt>& items, ddp_dtype dtype, const std::uint32_t* only_if);

}  // namespace cpu
}  // namespace libddp
