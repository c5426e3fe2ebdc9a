// Reductions in rank order, and all_to_all: NCCL only carries the data.
#include <vector>

#include "backends/nccl/collectives.h"
#include "backends/nccl/grouped.h"
#include "backends/nccl/shares.h"
#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "kernels/cuda/kernels.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp::cuda {
namespace {

// Memory in the order of a stream, while this lives.
class Scratch {
public:
    Scratch(int device, std::size_t bytes, cudaStream_t stream) : stream_(stream) {
        if (bytes > 0) memory_ = static_cast<std::byte*>(allocate_in_order(device, bytes, stream));
    }
    ~Scratch() {
        if (memory_) cudaFreeAsync(memory_, stream_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::byte* at(std::size_t offset) const { return memory_ + offset; }

private:
    const cudaStream_t stream_;
    std::byte* memory_ = nullptr;
};

// Sends and receives of one group.
class Exchange {
public:
    Exchange(ncclComm_t comm, cudaStream_t stream) : comm_(comm), stream_(stream) {}
    void send(const std::byte* data, std::size_t bytes, std::size_t peer) {
        if (bytes > 0)
            group_.note(
                nccl().ncclSend(data, bytes, ncclUint8, static_cast<int>(peer), comm_, stream_));
    }
    void receive(std::byte* data, std::size_t bytes, std::size_t peer) {
        if (bytes > 0)
            group_.note(
                nccl().ncclRecv(data, bytes, ncclUint8, static_cast<int>(peer), comm_, stream_));
    }
    ncclResult_t end() { return group_.end(); }

private:
    Grouped group_;
    const ncclComm_t comm_;
    const cudaStream_t stream_;
};

struct Pieces {
    const Channel& channel;
    const ddp_collective& c;
    const std::size_t item = dtype_size(c.dtype);
    const std::size_t rank = static_cast<std::size_t>(channel.rank),
                      world = static_cast<std::size_t>(channel.world);
    const cudaStream_t stream = stream_of(c.stream);

    // Every rank sends each other its share and receives the others' parts of its own, which it
    // reduces into `out`. share_of(rank): where a rank's share lies in c.send.
    template <class ShareOf>
    void reduce_own(void* out, ShareOf share_of, const Deadline& deadline) const {
        const auto* send = static_cast<const std::byte*>(c.send);
        const Share own = share_of(rank);
        const Scratch scratch(channel.communicator.device(), own.count * item * (world - 1),
                              stream);
        const auto slot = [&](std::size_t peer) {
            return (peer < rank ? peer : peer - 1) * own.count * item;
        };
        std::vector<const void*> inputs(world);
        for (std::size_t peer = 0; peer < world; ++peer)
            inputs[peer] = peer == rank ? send + own.begin * item : scratch.at(slot(peer));
        if (world > 1)
            channel.communicator.enqueue("exchanging shares", deadline, [&](ncclComm_t comm) {
                Exchange exchange(comm, stream);
                for (std::size_t peer = 0; peer < world; ++peer) {
                    if (peer == rank) continue;
                    const Share theirs = share_of(peer);
                    exchange.send(send + theirs.begin * item, theirs.count * item, peer);
                    exchange.receive(scratch.at(slot(peer)), own.count * item, peer);
                }
                return exchange.end();
            });
        reduce(out, inputs.data(), world, own.count, c.dtype, c.op, c.scale, stream);
    }
};

}  // namespace

void direct_allreduce(const Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    const Pieces pieces{channel, c};
    const Shares shares(c.count, pieces.item, pieces.world);
    auto* recv = static_cast<std::byte*>(c.recv);
    const auto share_of = [&](std::size_t rank) { return shares.of(rank); };
    const Share own = shares.of(pieces.rank);
    pieces.reduce_own(recv + own.begin * pieces.item, share_of, deadline);
    if (pieces.world == 1) return;
    channel.communicator.enqueue("exchanging sums", deadline, [&](ncclComm_t comm) {
        Exchange exchange(comm, pieces.stream);
        for (std::size_t peer = 0; peer < pieces.world; ++peer) {
            if (peer == pieces.rank) continue;
            const Share theirs = shares.of(peer);
            exchange.send(recv + own.begin * pieces.item, own.count * pieces.item, peer);
            exchange.receive(recv + theirs.begin * pieces.item, theirs.count * pieces.item, peer);
        }
        return exchange.end();
    });
}

void direct_reduce_scatter(const Channel& channel, const ddp_collective& c,
                           const Deadline& deadline) {
    const Pieces pieces{channel, c};
    pieces.reduce_own(
        c.recv,
        [&](std::size_t rank) {
            const int number = static_cast<int>(rank);
            return Share{part_begin(c, number), part_count(c, number)};
        },
        deadline);
}

void all_to_all(const Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    const Pieces pieces{channel, c};
    const Exchanged exchanged(c, channel.world);
    std::vector<std::uint64_t> counts;
    const ddp_collective input = exchanged.input(channel.rank),
                         output = exchanged.output(channel.rank, counts);
    if (const std::size_t own = part_bytes(input, channel.rank); own > 0)
        check(cudaMemcpyAsync(part_of(output, c.recv, channel.rank),
                              part_of(input, c.send, channel.rank), own, cudaMemcpyDeviceToDevice,
                              pieces.stream),
              "cudaMemcpyAsync");
    if (channel.world == 1) return;
    channel.communicator.enqueue("all_to_all", deadline, [&](ncclComm_t comm) {
        Exchange exchange(comm, pieces.stream);
        for (int peer = 0; peer < channel.world; ++peer) {
            if (peer == channel.rank) continue;
            const auto to = static_cast<std::size_t>(peer);
            exchange.send(part_of(input, c.send, peer), part_bytes(input, peer), to);
            exchange.receive(part_of(output, c.recv, peer), part_bytes(output, peer), to);
        }
        return exchange.end();
    });
}

}  // namespace libddp::cuda
