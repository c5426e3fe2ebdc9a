// Reduce-scatter and allgather by sending straight to every peer, with the reduction of one chunk under way while others travel.
#include <algorithm>
#include <vector>

#include "backends/tcp/operations.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp::tcp {
namespace {

// Up to this many bytes each rank sends its whole vector to all others and reduces everything itself: one message of latency instead
// of two, for up to P/2 times the bytes.
constexpr std::size_t kSmall = std::size_t{32} << 10;

// The reduce-scatter: this rank's slice arrives from every peer in chunks and is reduced in rank order.
class SliceReduction {
public:
    SliceReduction(Bench bench, const ddp_collective& c, const backend::Cut& cut, const Deadline& deadline)
        : mesh_(bench.mesh), c_(c), cut_(cut), deadline_(deadline) {
        const std::size_t largest = std::min(cut_.chunk, std::max<std::size_t>(1, cut_.size(mesh_.rank())));
        slot_bytes_ = backend::round_up(largest * cut_.element, backend::kAlignment);
        slots_ = std::min(kWindow, std::max<std::size_t>(1, cut_.chunks(mesh_.rank())));
        staged_ = bench.memory.reserve(slots_ * slot_bytes_ * static_cast<std::size_t>(mesh_.size()));
        missing_.assign(cut_.chunks(mesh_.rank()), mesh_.size() - 1);
    }

    // Queues all that this rank gives, and what it can take now. Chunk k travels in lane k modulo their number.
    void start() {
        for (std::size_t k = 0; k < std::min(slots_, missing_.size()); ++k) receive(k);
        std::size_t most = 0;
        for (int rank = 0; rank < mesh_.size(); ++rank) most = std::max(most, cut_.chunks(rank));
        const char* data = static_cast<const char*>(c_.send);
        for (std::size_t k = 0; k < most; ++k)
            for (int distance = 1; distance < mesh_.size(); ++distance) {
                const int peer = mesh_.after(distance);
                if (k < cut_.chunks(peer))
                    mesh_.send(peer, MessageType::kData, data + cut_.offset(peer, k),
                               cut_.chunk_size(peer, k) * cut_.element, k % mesh_.lanes());
            }
    }

    // Reduces into `out` and calls done(k) after each chunk of the own slice, and queued() once all chunks are expected.
    template <class Done, class Queued>
    void reduce_into(char* out, Done done, Queued queued) {
        const int rank = mesh_.rank();
        const char* own = static_cast<const char*>(c_.send) + cut_.offset(rank, 0);
        std::vector<const void*> inputs(static_cast<std::size_t>(mesh_.size()));
        if (missing_.size() <= slots_) queued();
        for (std::size_t k = 0; k < missing_.size(); ++k) {
            mesh_.wait(deadline_, [&] { return missing_[k] == 0; });
            const std::size_t offset = k * cut_.chunk * cut_.element;
            for (int peer = 0; peer < mesh_.size(); ++peer)
                inputs[static_cast<std::size_t>(peer)] = peer == rank ? own + offset : slot(peer, k);
            cpu::reduce(out + offset, inputs.data(), inputs.size(), cut_.chunk_size(rank, k), c_.dtype, c_.op,
                        c_.scale);
            if (k + slots_ < missing_.size()) {
                receive(k + slots_);
                if (k + slots_ + 1 == missing_.size()) queued();
            }
            done(k);
        }
    }

private:
    char* slot(int peer, std::size_t k) const {
        return staged_ + (static_cast<std::size_t>(peer) * slots_ + k % slots_) * slot_bytes_;
    }
    void receive(std::size_t k) {
        for (int distance = 1; distance < mesh_.size(); ++distance) {
            const int peer = mesh_.before(distance);
            mesh_.expect(peer, MessageType::kData, slot(peer, k), cut_.chunk_size(mesh_.rank(), k) * cut_.element,
                         &missing_[k], k % mesh_.lanes());
        }
    }

    Mesh& mesh_;
    const ddp_collective& c_;
    const backend::Cut cut_;
    const Deadline deadline_;
    std::size_t slot_bytes_, slots_;
    char* staged_;
    std::vector<int> missing_;  // for each chunk: peers whose part has not come
};

void small_allreduce(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    const std::size_t bytes = c.count * dtype_size(c.dtype), stride = backend::round_up(bytes, backend::kAlignment);
    char* all = bench.memory.reserve(stride * static_cast<std::size_t>(mesh.size()));
    std::vector<const void*> inputs(static_cast<std::size_t>(mesh.size()));
    int missing = mesh.size() - 1;
    bench.exchange.begin(c, deadline);
    for (int peer = 0; peer < mesh.size(); ++peer)
        inputs[static_cast<std::size_t>(peer)] = all + static_cast<std::size_t>(peer) * stride;
    inputs[static_cast<std::size_t>(mesh.rank())] = c.send;
    for (int distance = 1; distance < mesh.size(); ++distance) {
        const int from = mesh.before(distance);
        mesh.expect(from, MessageType::kData, all + static_cast<std::size_t>(from) * stride, bytes, &missing);
        mesh.send(mesh.after(distance), MessageType::kData, c.send, bytes);
    }
    bench.exchange.finish();
    mesh.wait(deadline, [&] { return missing == 0; });
    // In place, the result overwrites what is being sent.
    mesh.wait_sent(deadline);
    cpu::reduce(c.recv, inputs.data(), inputs.size(), c.count, c.dtype, c.op, c.scale);
}

// In place, a peer's result arrives where this rank's own input for that peer stood. That is safe: the peer sends a chunk of the
// result only after it has received this rank's input for the same chunk.
void large_allreduce(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    const int rank = mesh.rank();
    const backend::Cut cut = backend::cut_evenly(c.count, mesh.size(), kChunk, c.dtype);
    char* const result = static_cast<char*>(c.recv);
    SliceReduction reduction(bench, c, cut, deadline);
    bench.exchange.begin(c, deadline);
    reduction.start();
    bench.exchange.finish();
    int missing = 0;
    const auto expect_results = [&] {
        std::size_t most = 0;
        for (int peer = 0; peer < mesh.size(); ++peer) most = std::max(most, cut.chunks(peer));
        for (std::size_t k = 0; k < most; ++k)
            for (int distance = 1; distance < mesh.size(); ++distance) {
                const int peer = mesh.before(distance);
                if (k >= cut.chunks(peer)) continue;
                ++missing;
                mesh.expect(peer, MessageType::kData, result + cut.offset(peer, k),
                            cut.chunk_size(peer, k) * cut.element, &missing, k % mesh.lanes());
            }
    };
    const auto send_result = [&](std::size_t k) {
        for (int distance = 1; distance < mesh.size(); ++distance)
            mesh.send(mesh.after(distance), MessageType::kData, result + cut.offset(rank, k),
                      cut.chunk_size(rank, k) * cut.element, k % mesh.lanes());
    };
    reduction.reduce_into(result + cut.offset(rank, 0), send_result, expect_results);
    mesh.wait(deadline, [&] { return missing == 0; });
    mesh.wait_sent(deadline);
}

}  // namespace

void direct_allreduce(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    if (c.count * dtype_size(c.dtype) <= kSmall)
        small_allreduce(bench, c, deadline);
    else
        large_allreduce(bench, c, deadline);
}

void direct_reduce_scatter(Bench bench, const ddp_collective& c, const Deadline& deadline) {
    Mesh& mesh = bench.mesh;
    const backend::Cut cut =
        backend::make_cut(c.count * static_cast<std::size_t>(mesh.size()), c.count, kChunk, c.dtype);
    SliceReduction reduction(bench, c, cut, deadline);
    bench.exchange.begin(c, deadline);
    reduction.start();
    bench.exchange.finish();
    reduction.reduce_into(
        static_cast<char*>(c.recv), [](std::size_t) {}, [] {});
    mesh.wait_sent(deadline);
}

}  // namespace libddp::tcp
