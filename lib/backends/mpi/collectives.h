// The collectives. Each moves its data in blocks, through MpiBuffers, and works on one block while
// MPI moves another.
#pragma once

#include "backends/mpi/channel.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::mpi {

// Every rank reduces its share of each block, in rank order, with libddp's kernels. Any dtype and
// op; the bits depend on nothing but the inputs. direct.cc
void direct_allreduce(Channel& channel, const ddp_collective& c, const Deadline& deadline);
void direct_reduce_scatter(Channel& channel, const ddp_collective& c, const Deadline& deadline);

// MPI's own. Sums, and integers in any way: where MPI's arithmetic could differ from libddp's (a
// NaN in a minimum, a product of infinite complex numbers) it is not asked. native.cc
bool mpi_can_reduce(ddp_dtype dtype, ddp_reduce_op op);
void mpi_allreduce(Channel& channel, const ddp_collective& c, const Deadline& deadline);
void broadcast(Channel& channel, const ddp_collective& c, const Deadline& deadline);
void allgather(Channel& channel, const ddp_collective& c, const Deadline& deadline);
void all_to_all(Channel& channel, const ddp_collective& c, const Deadline& deadline);
void barrier(Channel& channel, const Deadline& deadline);

}  // namespace libddp::mpi
