// Allreduce, reduce_scatter and all_to_all by sending straight to every peer, with the reduction of
// one chunk under way while others travel. Each rank reduces its slice of the message, strictly in rank
// order, and sends it to all: the bits depend on nothing but the inputs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "backends/common/slices.h"
#include "ddp/backend.h"
#include "device/scratch.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"
#include "util/deadline.h"

namespace libddp::backend {

// Peers is what a transport offers to one operation:
//
//     kChunk, kWindow                         bytes of a chunk; how many of each peer may be under way
//     rank(), size(), memory                  memory: a ScratchMemory
//     exchange.begin(), exchange.finish()     nothing is sent before, and no result written
//     expect(peer, into, bytes, missing, k)   chunk k is next, and takes 1 from *missing
//     send(peer, data, bytes, k)              data stays as it is until wait_sent()
//     wait(deadline, done), wait_sent(deadline)
//
// Each rank goes round the others beginning with its neighbour, so that they do not all send to the
// same one first.
template <class Peers, class Call>
void each_after(const Peers& peers, Call call) {
    for (int distance = 1; distance < peers.size(); ++distance)
        call((peers.rank() + distance) % peers.size());
}
template <class Peers, class Call>
void each_before(const Peers& peers, Call call) {
    for (int distance = 1; distance < peers.size(); ++distance)
        call((peers.rank() + peers.size() - distance) % peers.size());
}

// The reduce-scatter: this rank's slice arrives from every peer in chunks and is reduced in rank
// order.
template <class Peers>
class SliceReduction {
public:
    SliceReduction(Peers& peers, const ddp_collective& c, const Cut& cut, const Deadline& deadline)
        : peers_(peers), c_(c), cut_(cut), deadline_(deadline) {
        const std::size_t largest =
            std::min(cut_.chunk, std::max<std::size_t>(1, cut_.size(peers_.rank())));
        slot_bytes_ = align_up(largest * cut_.element);
        slots_ = std::min(Peers::kWindow, std::max<std::size_t>(1, cut_.chunks(peers_.rank())));
        staged_ =
            peers_.memory.require(slots_ * slot_bytes_ * static_cast<std::size_t>(peers_.size()));
        missing_.assign(cut_.chunks(peers_.rank()), peers_.size() - 1);
    }

    // Queues all that this rank gives, and what it can take now.
    void start() {
        for (std::size_t k = 0; k < std::min(slots_, missing_.size()); ++k) receive(k);
        const std::byte* data = static_cast<const std::byte*>(c_.send);
        for (std::size_t k = 0; k < cut_.most_chunks(peers_.size()); ++k)
            each_after(peers_, [&](int peer) {
                if (k < cut_.chunks(peer))
                    peers_.send(peer, data + cut_.offset(peer, k),
                                cut_.chunk_size(peer, k) * cut_.element, k);
            });
    }

    // Reduces into `out` and calls done(k) after each chunk of the own slice, and queued() once all
    // chunks are expected.
    template <class Done, class Queued>
    void reduce_into(std::byte* out, Done done, Queued queued) {
        const int rank = peers_.rank();
        const std::byte* own = static_cast<const std::byte*>(c_.send) + cut_.offset(rank, 0);
        std::vector<const void*> inputs(static_cast<std::size_t>(peers_.size()));
        if (missing_.size() <= slots_) queued();
        for (std::size_t k = 0; k < missing_.size(); ++k) {
            peers_.wait(deadline_, [&] { return missing_[k] == 0; });
            const std::size_t offset = k * cut_.chunk * cut_.element;
            for (int peer = 0; peer < peers_.size(); ++peer)
                inputs[static_cast<std::size_t>(peer)] =
                    peer == rank ? own + offset : slot(peer, k);
            cpu::reduce(out + offset, inputs.data(), inputs.size(), cut_.chunk_size(rank, k),
                        c_.dtype, c_.op, c_.scale);
            if (k + slots_ < missing_.size()) {
                receive(k + slots_);
                if (k + slots_ + 1 == missing_.size()) queued();
            }
            done(k);
        }
    }

private:
    std::byte* slot(int peer, std::size_t k) const {
        return staged_ + (static_cast<std::size_t>(peer) * slots_ + k % slots_) * slot_bytes_;
    }
    void receive(std::size_t k) {
        each_before(peers_, [&](int peer) {
            peers_.expect(peer, slot(peer, k), cut_.chunk_size(peers_.rank(), k) * cut_.element,
                          &missing_[k], k);
        });
    }

    Peers& peers_;
    const ddp_collective& c_;
    const Cut& cut_;
    const Deadline& deadline_;
    std::size_t slot_bytes_, slots_;
    std::byte* staged_;
    std::vector<int> missing_;  // for each chunk: peers whose part has not come
};

template <class Peers>
void small_allreduce(Peers& peers, const ddp_collective& c, const Deadline& deadline) {
    const std::size_t bytes = c.count * dtype_size(c.dtype), stride = align_up(bytes);
    std::byte* all = peers.memory.require(stride * static_cast<std::size_t>(peers.size()));
    std::vector<const void*> inputs(static_cast<std::size_t>(peers.size()));
    int missing = peers.size() - 1;
    peers.exchange.begin(c, deadline);
    for (std::size_t peer = 0; peer < inputs.size(); ++peer) inputs[peer] = all + peer * stride;
    inputs[static_cast<std::size_t>(peers.rank())] = c.send;
    each_before(peers, [&](int peer) {
        peers.expect(peer, all + static_cast<std::size_t>(peer) * stride, bytes, &missing, 0);
    });
    each_after(peers, [&](int peer) { peers.send(peer, c.send, bytes, 0); });
    peers.exchange.finish();
    peers.wait(deadline, [&] { return missing == 0; });
    // In place, the result overwrites what is being sent.
    peers.wait_sent(deadline);
    cpu::reduce(c.recv, inputs.data(), inputs.size(), c.count, c.dtype, c.op, c.scale);
}

// Up to this many bytes each rank sends its whole message to all others and reduces everything
// itself: one message of latency instead of two, for up to P/2 times the bytes.
inline constexpr std::size_t kSmall = std::size_t{32} << 10;

// In place, a peer's result arrives where this rank's own input for that peer stood. That is safe:
// the peer sends a chunk of the result only after it has received this rank's input for the same
// chunk.
template <class Peers>
void direct_allreduce(Peers peers, const ddp_collective& c, const Deadline& deadline) {
    if (c.count * dtype_size(c.dtype) <= kSmall) return small_allreduce(peers, c, deadline);
    const int rank = peers.rank();
    const Cut cut = cut_evenly(c.count, peers.size(), Peers::kChunk, c.dtype);
    std::byte* const result = static_cast<std::byte*>(c.recv);
    SliceReduction<Peers> reduction(peers, c, cut, deadline);
    peers.exchange.begin(c, deadline);
    reduction.start();
    peers.exchange.finish();
    int missing = 0;
    const auto expect_results = [&] {
        for (std::size_t k = 0; k < cut.most_chunks(peers.size()); ++k)
            each_before(peers, [&](int peer) {
                if (k >= cut.chunks(peer)) return;
                ++missing;
                peers.expect(peer, result + cut.offset(peer, k),
                             cut.chunk_size(peer, k) * cut.element, &missing, k);
            });
    };
    const auto send_result = [&](std::size_t k) {
        each_after(peers, [&](int peer) {
            peers.send(peer, result + cut.offset(rank, k), cut.chunk_size(rank, k) * cut.element,
                       k);
        });
    };
    reduction.reduce_into(result + cut.offset(rank, 0), send_result, expect_results);
    peers.wait(deadline, [&] { return missing == 0; });
    peers.wait_sent(deadline);
}

// In place, the result overwrites this rank's own input for it, which nobody is sent.
template <class Peers>
void direct_reduce_scatter(Peers peers, const ddp_collective& c, const Deadline& deadline) {
    const Cut cut = cut_in_parts(c, peers.size(), Peers::kChunk);
    SliceReduction<Peers> reduction(peers, c, cut, deadline);
    peers.exchange.begin(c, deadline);
    reduction.start();
    peers.exchange.finish();
    reduction.reduce_into(
        static_cast<std::byte*>(c.recv), [](std::size_t) {}, [] {});
    peers.wait_sent(deadline);
}

// Every rank sends each other its part. c.recv is no place that a peer sends from.
template <class Peers>
void direct_all_to_all(Peers peers, const ddp_collective& c, const Deadline& deadline) {
    const int rank = peers.rank(), size = peers.size();
    const Exchanged exchanged(c, size);
    std::vector<std::uint64_t> counts;
    const ddp_collective input = exchanged.input(rank), output = exchanged.output(rank, counts);
    const Cut out = cut_in_parts(input, size, Peers::kChunk),
              in = cut_in_parts(output, size, Peers::kChunk);
    const auto* send = static_cast<const std::byte*>(c.send);
    auto* recv = static_cast<std::byte*>(c.recv);
    peers.exchange.begin(c, deadline);
    for (std::size_t k = 0; k < out.most_chunks(size); ++k)
        each_after(peers, [&](int peer) {
            if (k < out.chunks(peer))
                peers.send(peer, send + out.offset(peer, k), out.chunk_size(peer, k) * out.element,
                           k);
        });
    peers.exchange.finish();
    int missing = 0;
    for (std::size_t k = 0; k < in.most_chunks(size); ++k)
        each_before(peers, [&](int peer) {
            if (k >= in.chunks(peer)) return;
            ++missing;
            peers.expect(peer, recv + in.offset(peer, k), in.chunk_size(peer, k) * in.element,
                         &missing, k);
        });
    if (part_count(input, rank) > 0)
        std::memcpy(recv + in.offset(rank, 0), send + out.offset(rank, 0), part_bytes(input, rank));
    peers.wait(deadline, [&] { return missing == 0; });
    peers.wait_sent(deadline);
}

}  // namespace libddp::backend
