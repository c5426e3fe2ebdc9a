// The collectives, each for a world of at least 2 and a count of at least 1. They throw Error. Each begins with the exchange in
// which ranks compare what they are about to do, and writes no result before that is over.
#pragma once

#include <cstddef>

#include "backends/common/slices.h"
#include "backends/tcp/exchange.h"
#include "backends/tcp/mesh.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::tcp {

// Long messages travel in chunks, each in one message.
inline constexpr std::size_t kChunk = std::size_t{256} << 10;
// How many chunks of each peer may be on their way or waiting to be reduced.
inline constexpr std::size_t kWindow = 8;

// The tools of an operation.
struct Bench {
    Mesh& mesh;
    Exchange& exchange;
    backend::ReceiveMemory& memory;
};

// Each rank reduces its slice of the vector, strictly in rank order, and sends it to all: the bits depend on nothing but the inputs.
// In a full mesh only.
void direct_allreduce(Bench bench, const ddp_collective& c, const Deadline& deadline);
void direct_reduce_scatter(Bench bench, const ddp_collective& c, const Deadline& deadline);

// Slices go round from neighbour to neighbour, and each rank adds its own. Short messages are gathered and reduced in rank order.
void ring_allreduce(Bench bench, const ddp_collective& c, const Deadline& deadline);
void ring_reduce_scatter(Bench bench, const ddp_collective& c, const Deadline& deadline);

// Down a binomial tree, in pieces.
void broadcast(Bench bench, const ddp_collective& c, const Deadline& deadline);
// In a full mesh every rank sends its part to every other; otherwise parts go round from neighbour to neighbour.
void allgather(Bench bench, const ddp_collective& c, const Deadline& deadline);

}  // namespace libddp::tcp
