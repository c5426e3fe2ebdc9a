// Settings from the options string, the group's flags and the world.
#pragma once

#include <cstdint>

#include "ddp/backend.h"

namespace libddp::mpi {

enum class Algorithm {
    kDirect,  // every rank reduces a share of the data, in rank order, with libddp's kernels
    kMpi      // MPI_Iallreduce
};

struct Settings {
    Algorithm algorithm = Algorithm::kDirect;
    std::int64_t finalize_timeout_ms = 0;
};

// Throws INVALID_ARGUMENT naming the key or value.
Settings read_settings(const ddp_backend_host& host);

}  // namespace libddp::mpi
