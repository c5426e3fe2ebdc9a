// What a hook does to gradients of low rank, for lists of matrices as device_kernels.h describes them: here on memory of the
// CPU, at once, and with the functions of on_device.h of the same names on a device, in the order of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/device_kernels.h"
#include "kernels/everywhere.h"

namespace libddp {

// Into how many parts a device cuts so many rows.
LIBDDP_EVERYWHERE std::size_t low_rank_parts(std::size_t rows) {
    return (rows + DDP_LOW_RANK_PART_ROWS - 1) / DDP_LOW_RANK_PART_ROWS;
}

namespace cpu {

void low_rank(ddp_low_rank_op op, const std::vector<ddp_low_rank>& items, ddp_dtype dtype);
void thin(ddp_thin_op op, const std::vector<ddp_thin>& items, ddp_dtype dtype, const ddp_thin_rules& rules);
void leave_out(const std::vector<ddp_doubt>& items, ddp_dtype dtype, const std::uint32_t* only_if);

}  // namespace cpu
}  // namespace libddp
