// Reduce-scatter, allgather and all_to_all by sending straight to every peer.
#include "backends/common/direct.h"

#include <gloo/transport/unbound_buffer.h>

#include <deque>
#include <utility>

#include "backends/gloo/operations.h"

namespace libddp::gloo_tcp {
namespace {

// Messages between two ranks are in order, so that one tag serves a whole operation. Each has a
// buffer of its own.
class Peers {
public:
    static constexpr std::size_t kChunk = std::size_t{512} << 10, kWindow = 4;

    Peers(Mesh& mesh, ScratchMemory& own) : memory(own), mesh_(mesh), tag_(mesh.new_tag()) {}

    ScratchMemory& memory;
    // Ranks have compared already what they are about to do.
    struct {
        void begin(const ddp_collective&, const Deadline&) {}
        void finish() {}
    } exchange;
    int rank() const { return mesh_.rank(); }
    int size() const { return mesh_.size(); }
    void expect(int peer, void* into, std::size_t bytes, int* missing, std::size_t) {
        expected_.emplace_back(mesh_.buffer(into, bytes), missing);
        expected_.back().first->recv(peer, tag_, 0, bytes);
    }
    void send(int peer, const void* data, std::size_t bytes, std::size_t) {
        sent_.push_back(mesh_.buffer(data, bytes));
        sent_.back()->send(peer, tag_, 0, bytes);
    }
    template <class Done>
    void wait(const Deadline& deadline, Done done) {
        for (; !done(); expected_.pop_front()) {
            wait_recv(*expected_.front().first, deadline);
            --*expected_.front().second;
        }
    }
    void wait_sent(const Deadline& deadline) {
        for (; !sent_.empty(); sent_.pop_front()) wait_send(*sent_.front(), deadline);
    }

private:
    Mesh& mesh_;
    const std::uint64_t tag_;
    std::deque<std::pair<BufferPtr, int*>> expected_;
    std::deque<BufferPtr> sent_;
};

}  // namespace

void direct_allreduce(Mesh& mesh, ScratchMemory& memory, const ddp_collective& c,
                      const Deadline& deadline) {
    backend::direct_allreduce(Peers(mesh, memory), c, deadline);
}

void direct_reduce_scatter(Mesh& mesh, ScratchMemory& memory, const ddp_collective& c,
                           const Deadline& deadline) {
    backend::direct_reduce_scatter(Peers(mesh, memory), c, deadline);
}

void all_to_all(Mesh& mesh, ScratchMemory& memory, const ddp_collective& c,
                const Deadline& deadline) {
    backend::direct_all_to_all(Peers(mesh, memory), c, deadline);
}

}  // namespace libddp::gloo_tcp
