// Collectives on one communicator. Each enqueues on collective.stream, and returns when that is
// done. The current device is the communicator's.
#pragma once

#include "backends/nccl/communicator.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::cuda {

struct Channel {
    Communicator& communicator;
    int rank, world;
};

// Whether NCCL's own reduction has the numbers that libddp promises: its minimum and maximum forget
// NaNs, and it has no complex numbers, whose sums are those of their parts.
bool nccl_can_reduce(ddp_dtype dtype, ddp_reduce_op op);

void nccl_allreduce(const Channel& channel, const ddp_collective& c, const Deadline& deadline);
void nccl_reduce_scatter(const Channel& channel, const ddp_collective& c, const Deadline& deadline);
void broadcast(const Channel& channel, const ddp_collective& c, const Deadline& deadline);
void allgather(const Channel& channel, const ddp_collective& c, const Deadline& deadline);
void all_to_all(const Channel& channel, const ddp_collective& c, const Deadline& deadline);

// Every rank gets its share of the others' data and reduces it in rank order, with libddp's kernel.
void direct_allreduce(const Channel& channel, const ddp_collective& c, const Deadline& deadline);
void direct_reduce_scatter(const Channel& channel, const ddp_collective& c,
                           const Deadline& deadline);

}  // namespace libddp::cuda
