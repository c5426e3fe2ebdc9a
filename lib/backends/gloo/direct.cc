// Reduce-scatter and allgather by sending straight to every peer, with the reduction of one chunk under way while
// others travel.
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstdlib>

#include "backends/common/slices.h"
#include "backends/gloo/operations.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp::gloo_tcp {
namespace {

// Up to this many bytes each rank sends its whole vector to all others and reduces everything itself: one message of
// latency instead of two, for up to P/2 times the bytes.
constexpr std::size_t kSmall = std::size_t{32} << 10;
constexpr std::size_t kChunk = std::size_t{512} << 10;
// How many chunks of each peer may be on their way or waiting to be reduced.
constexpr std::size_t kWindow = 4;

// The reduce-scatter: this rank's slice arrives from every peer in chunks and is reduced in rank order.
class SliceReduction {
public:
    SliceReduction(Mesh& mesh, backend::ReceiveMemory& memory, const ddp_collective& c, const backend::Cut& cut,
                   const Deadline& deadline)
        : mesh_(mesh), c_(c), cut_(cut), deadline_(deadline), tag_(mesh.new_tag()) {
        const std::size_t largest = std::min(cut_.chunk, std::max<std::size_t>(1, cut_.size(mesh.rank())));
        slot_bytes_ = backend::round_up(largest * cut_.element, backend::kAlignment);
        const std::size_t slots = std::min(kWindow, std::max<std::size_t>(1, cut_.chunks(mesh.rank())));
        per_peer_ = slots * slot_bytes_;
        staged_ = memory.reserve(per_peer_ * static_cast<std::size_t>(mesh.size()));
        for (int peer = 0; peer < mesh.size(); ++peer) incoming_.push_back(mesh.buffer(slot(peer, 0), per_peer_));
        outgoing_ = mesh.buffer(c.send, cut.total * cut.element);
    }

    // Tells Gloo about everything that can move now.
    void start() {
        const std::size_t first = std::min(kWindow, cut_.chunks(mesh_.rank()));
        for (std::size_t k = 0; k < first; ++k)
            for (int distance = 1; distance < mesh_.size(); ++distance) receive(peer_before(distance), k);
        std::size_t most = 0;
        for (int rank = 0; rank < mesh_.size(); ++rank) most = std::max(most, cut_.chunks(rank));
        for (std::size_t k = 0; k < most; ++k)
            for (int distance = 1; distance < mesh_.size(); ++distance) send(peer_after(distance), k);
    }

    // Reduces into `out` and calls done(k) after each chunk of the own slice.
    template <class Done>
    void reduce_into(char* out, Done done) {
        const int rank = mesh_.rank();
        const char* own = static_cast<const char*>(c_.send) + cut_.begin(rank) * cut_.element;
        std::vector<const void*> inputs(static_cast<std::size_t>(mesh_.size()));
        for (std::size_t k = 0; k < cut_.chunks(rank); ++k) {
            const std::size_t offset = k * cut_.chunk * cut_.element;
            for (int peer = 0; peer < mesh_.size(); ++peer) {
                if (peer != rank) wait_recv(*incoming_[static_cast<std::size_t>(peer)], deadline_);
                inputs[static_cast<std::size_t>(peer)] = peer == rank ? own + offset : slot(peer, k);
            }
            cpu::reduce(out + offset, inputs.data(), inputs.size(), cut_.chunk_size(rank, k), c_.dtype, c_.op,
                        c_.scale);
            if (k + kWindow < cut_.chunks(rank))
                for (int distance = 1; distance < mesh_.size(); ++distance) receive(peer_before(distance), k + kWindow);
            done(k);
        }
    }

    void finish_sends() {
        for (; sends_ > 0; --sends_) wait_send(*outgoing_, deadline_);
    }

private:
    // Each rank goes round the others beginning with its neighbour, so that they do not all send to the same one first.
    int peer_after(int distance) const { return (mesh_.rank() + distance) % mesh_.size(); }
    int peer_before(int distance) const { return (mesh_.rank() + mesh_.size() - distance) % mesh_.size(); }

    char* slot(int peer, std::size_t k) const {
        return staged_ + static_cast<std::size_t>(peer) * per_peer_ + k % kWindow * slot_bytes_;
    }

    void receive(int peer, std::size_t k) {
        incoming_[static_cast<std::size_t>(peer)]->recv(peer, tag_, k % kWindow * slot_bytes_,
                                                        cut_.chunk_size(mesh_.rank(), k) * cut_.element);
    }

    void send(int peer, std::size_t k) {
        if (k >= cut_.chunks(peer)) return;
        outgoing_->send(peer, tag_, cut_.offset(peer, k), cut_.chunk_size(peer, k) * cut_.element);
        ++sends_;
    }

    Mesh& mesh_;
    const ddp_collective& c_;
    const backend::Cut cut_;
    const Deadline deadline_;
    const std::uint64_t tag_;
    std::size_t slot_bytes_;
    std::size_t per_peer_;
    std::size_t sends_ = 0;
    char* staged_;
    std::vector<BufferPtr> incoming_;
    BufferPtr outgoing_;
};

void small_allreduce(Mesh& mesh, backend::ReceiveMemory& memory, const ddp_collective& c, const Deadline& deadline) {
    const int size = mesh.size(), rank = mesh.rank();
    const std::size_t bytes = c.count * dtype_size(c.dtype), stride = backend::round_up(bytes, backend::kAlignment);
    char* all = memory.reserve(stride * static_cast<std::size_t>(size));
    const std::uint64_t tag = mesh.new_tag();
    const auto incoming = mesh.buffer(all, stride * static_cast<std::size_t>(size));
    const auto outgoing = mesh.buffer(c.send, bytes);
    std::vector<const void*> inputs(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
        const std::size_t at = static_cast<std::size_t>(peer) * stride;
        inputs[static_cast<std::size_t>(peer)] = peer == rank ? c.send : all + at;
        if (peer != rank) incoming->recv(peer, tag, at, bytes);
    }
    for (int distance = 1; distance < size; ++distance) outgoing->send((rank + distance) % size, tag, 0, bytes);
    for (int peer = 1; peer < size; ++peer) wait_recv(*incoming, deadline);
    // In place, the result overwrites what is being sent.
    for (int peer = 1; peer < size; ++peer) wait_send(*outgoing, deadline);
    cpu::reduce(c.recv, inputs.data(), inputs.size(), c.count, c.dtype, c.op, c.scale);
}

// In place, a peer's result arrives where this rank's own input for that peer stood. That is safe: the peer sends a
// chunk of the result only after it has received this rank's input for the same chunk.
void large_allreduce(Mesh& mesh, backend::ReceiveMemory& memory, const ddp_collective& c, const Deadline& deadline) {
    const int size = mesh.size(), rank = mesh.rank();
    const backend::Cut cut = backend::cut_evenly(c.count, size, kChunk, c.dtype);
    const std::uint64_t tag = mesh.new_tag();
    const auto result = mesh.buffer(c.recv, c.count * cut.element);

    SliceReduction reduction(mesh, memory, c, cut, deadline);
    reduction.start();
    std::size_t receives = 0, sends = 0;
    for (int distance = 1; distance < size; ++distance) {
        const int peer = (rank + size - distance) % size;
        for (std::size_t k = 0; k < cut.chunks(peer); ++k, ++receives)
            result->recv(peer, tag, cut.offset(peer, k), cut.chunk_size(peer, k) * cut.element);
    }
    reduction.reduce_into(static_cast<char*>(c.recv) + cut.begin(rank) * cut.element, [&](std::size_t k) {
        for (int distance = 1; distance < size; ++distance, ++sends)
            result->send((rank + distance) % size, tag, cut.offset(rank, k), cut.chunk_size(rank, k) * cut.element);
    });
    for (; receives > 0; --receives) wait_recv(*result, deadline);
    reduction.finish_sends();
    for (; sends > 0; --sends) wait_send(*result, deadline);
}

}  // namespace

void direct_allreduce(Mesh& mesh, backend::ReceiveMemory& memory, const ddp_collective& c, const Deadline& deadline) {
    if (c.count * dtype_size(c.dtype) <= kSmall)
        small_allreduce(mesh, memory, c, deadline);
    else
        large_allreduce(mesh, memory, c, deadline);
}

void direct_reduce_scatter(Mesh& mesh, backend::ReceiveMemory& memory, const ddp_collective& c,
                           const Deadline& deadline) {
    const backend::Cut cut =
        backend::make_cut(c.count * static_cast<std::size_t>(mesh.size()), c.count, kChunk, c.dtype);
    SliceReduction reduction(mesh, memory, c, cut, deadline);
    reduction.start();
    reduction.reduce_into(static_cast<char*>(c.recv), [](std::size_t) {});
    reduction.finish_sends();
}

}  // namespace libddp::gloo_tcp
