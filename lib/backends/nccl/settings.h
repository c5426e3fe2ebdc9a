// Settings from the options string, the group's flags and the world.
#pragma once

#include "ddp/backend.h"

namespace libddp::cuda {

struct Settings {
    // Every rank reduces a share of the data, in rank order, with libddp's kernels; otherwise NCCL
    // reduces wherever it has the numbers that libddp promises.
    bool direct = false;
    // Buckets lie in memory that NCCL reads and writes without copies of its own, where hardware
    // allows.
    bool registers = true;
    // NCCL divides the sum of a mean in the same pass. Only where that is exact.
    bool averages = false;
};

// Throws INVALID_ARGUMENT naming the key or value.
Settings read_settings(const ddp_backend_host& host);

}  // namespace libddp::cuda
