// The collectives, each for a world of at least 2 and a count of at least 1. They throw Error. Each
// begins with the exchange in which ranks compare what they are about to do, and writes no result
// before that is over.
#pragma once

#include <cstddef>

#include "backends/tcp/exchange.h"
#include "backends/tcp/mesh.h"
#include "ddp/backend.h"
#include "device/scratch.h"
#include "util/deadline.h"

namespace libddp::tcp {

// The tools of an operation, also as backends/common/direct.h wants them.
struct Bench {
    // Long messages travel in chunks, each in one message, chunk k in lane k modulo their number.
    static constexpr std::size_t kChunk = std::size_t{256} << 10;
    // How many chunks of each peer may be on their way or waiting to be reduced.
    static constexpr std::size_t kWindow = 8;

    Mesh& mesh;
    Exchange& exchange;
    ScratchMemory& memory;

    int rank() const { return mesh.rank(); }
    int size() const { return mesh.size(); }
    void expect(int peer, void* into, std::size_t bytes, int* missing, std::size_t k) const {
        mesh.expect(peer, MessageType::kData, into, bytes, missing, k % mesh.lanes());
    }
    void send(int peer, const void* data, std::size_t bytes, std::size_t k) const {
        mesh.send(peer, MessageType::kData, data, bytes, k % mesh.lanes());
    }
    template <class Done>
    void wait(const Deadline& deadline, Done done) const {
        mesh.wait(deadline, done);
    }
    void wait_sent(const Deadline& deadline) const { mesh.wait_sent(deadline); }
};

// Slices go round from neighbour to neighbour, and each rank adds its own. Short messages are
// gathered and reduced in rank order.
void ring_allreduce(Bench bench, const ddp_collective& c, const Deadline& deadline);
void ring_reduce_scatter(Bench bench, const ddp_collective& c, const Deadline& deadline);

// Down a binomial tree, in pieces.
void broadcast(Bench bench, const ddp_collective& c, const Deadline& deadline);
// In a full mesh every rank sends its part to every other, in chunks; otherwise parts go round from
// neighbour to neighbour.
void allgather(Bench bench, const ddp_collective& c, const Deadline& deadline);
// Where the mesh is not full: in log2(world) rounds, of which round k carries on by 2^k ranks all
// that has such a distance in its way (Bruck's algorithm).
void all_to_all_in_rounds(Bench bench, const ddp_collective& c, const Deadline& deadline);

}  // namespace libddp::tcp
