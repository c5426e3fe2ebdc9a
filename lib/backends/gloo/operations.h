// The collectives, each for a world of at least 2 and a count of at least 1. They throw what Gloo
// throws, or Error.
#pragma once

#include <cstddef>

#include "backends/gloo/mesh.h"
#include "backends/gloo/settings.h"
#include "backends/gloo/watchdog.h"
#include "ddp/backend.h"
#include "device/scratch.h"

namespace libddp::gloo_tcp {

// Each rank reduces its slice of the vector, strictly in rank order, and sends it to all: the bits
// depend on nothing but the inputs.
void direct_allreduce(Mesh& mesh, ScratchMemory& memory, const ddp_collective& c,
                      const Deadline& deadline);
void direct_reduce_scatter(Mesh& mesh, ScratchMemory& memory, const ddp_collective& c,
                           const Deadline& deadline);

// Gloo's ring or bcube, with libddp's kernels.
void gloo_allreduce(Mesh& mesh, Watchdog& watchdog, Algorithm algorithm, const ddp_collective& c,
                    const Deadline& deadline);

// Down a binomial tree, in pieces.
void broadcast(Mesh& mesh, const ddp_collective& c, const Deadline& deadline);
// Every rank sends its part to every other.
void allgather(Mesh& mesh, const ddp_collective& c, const Deadline& deadline);
// The same with a part for each.
void all_to_all(Mesh& mesh, ScratchMemory& memory, const ddp_collective& c,
                const Deadline& deadline);

}  // namespace libddp::gloo_tcp
