// Reductions by libddp's kernels; MPI only carries bytes from rank to rank.
#include <algorithm>
#include <utility>
#include <vector>

#include "backends/common/slices.h"
#include "backends/mpi/collectives.h"
#include "backends/mpi/process.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp::mpi {
namespace {

// Small enough to stay in a core's cache between copy, transfer and reduction.
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
// Up to this many bytes from all ranks together, everyone sends everything to everyone: one round
// instead of two.
constexpr std::size_t kOneRoundBytes = std::size_t{32} << 10;

constexpr int kScatterTag = 1, kGatherTag = 2;

// To and from one other rank.
struct Message {
    int peer;
    const std::byte* send;
    std::byte* receive;
    std::size_t send_bytes, receive_bytes;
};

Start exchange(MPI_Comm comm, int tag, std::vector<Message> messages) {
    return [comm, tag, messages = std::move(messages)](Requests& requests) {
        requests.reserve(2 * messages.size());
        const auto add = [&](int code, MPI_Request request, const char* call) {
            check(code, call);
            requests.push_back(request);
        };
        MPI_Request request = MPI_REQUEST_NULL;
        for (const Message& m : messages) {
            if (m.receive_bytes == 0) continue;
            const int code = MPI_Irecv(m.receive, static_cast<int>(m.receive_bytes), MPI_BYTE,
                                       m.peer, tag, comm, &request);
            add(code, request, "MPI_Irecv");
        }
        for (const Message& m : messages) {
            if (m.send_bytes == 0) continue;
            const int code = MPI_Isend(m.send, static_cast<int>(m.send_bytes), MPI_BYTE, m.peer,
                                       tag, comm, &request);
            add(code, request, "MPI_Isend");
        }
    };
}

// The other ranks, each rank beginning with another one, so that they do not all send to the same
// one first.
template <class Make>
std::vector<Message> to_others(const Channel& channel, Make make) {
    std::vector<Message> messages;
    for (int distance = 1; distance < channel.size; ++distance) {
        const int peer = (channel.rank + distance) % channel.size;
        messages.push_back(make(peer, static_cast<std::size_t>(peer)));
    }
    return messages;
}

// How `count` elements are shared out: each rank reduces as many, in whole cache lines, and the
// last ones less.
class Shares {
public:
    Shares(std::size_t count, std::size_t ranks, std::size_t item)
        : count_(count),
          item_(item),
          length_(align_up((count + ranks - 1) / ranks * item) / item) {}

    std::size_t begin(std::size_t rank) const { return std::min(count_, rank * length_); }
    std::size_t count(std::size_t rank) const { return begin(rank + 1) - begin(rank); }
    std::size_t offset(std::size_t rank) const { return begin(rank) * item_; }
    std::size_t bytes(std::size_t rank) const { return count(rank) * item_; }
    // Where what rank r sent is put: whole shares one after another.
    std::size_t place(std::size_t rank) const { return rank * length_ * item_; }
    std::size_t all_places(std::size_t ranks) const { return place(ranks); }

private:
    const std::size_t count_, item_, length_;
};

// Allreduce in two rounds. Three blocks may be under way: one is sent to those who reduce it, one
// is being reduced, and the results of one come in.
class TwoRounds {
public:
    TwoRounds(Channel& channel, const ddp_collective& c, const Deadline& deadline)
        : channel_(channel),
          c_(c),
          deadline_(deadline),
          item_(dtype_size(c.dtype)),
          blocks_(c.count, item_, kBlockBytes) {}

    void run() {
        Pending scattered[2], gathered[2];
        const std::size_t count = blocks_.size();
        for (std::size_t i = 0; i < count + 2; ++i) {
            if (i < count) scattered[i % 2] = scatter(blocks_[i]);
            if (i >= 1 && i <= count) {
                const Block block = blocks_[i - 1];
                channel_.wait(scattered[block.slot], deadline_);
                gathered[block.slot] = reduce_and_gather(block);
            }
            if (i >= 2) {
                const Block block = blocks_[i - 2];
                channel_.wait(gathered[block.slot], deadline_);
                copy(c_, at(c_.recv, block), results(block), block.count * item_);
            }
        }
    }

private:
    Shares shares(const Block& block) const { return {block.count, channel_.ranks(), item_}; }
    std::byte* at(void* memory, const Block& block) const {
        return static_cast<std::byte*>(memory) + block.at * item_;
    }
    const std::byte* at(const void* memory, const Block& block) const {
        return static_cast<const std::byte*>(memory) + block.at * item_;
    }
    // Slots 0 and 1: a copy of the block, then what others send of this rank's share. 2 and 3: the
    // results.
    std::size_t whole_bytes(const Block& block) const { return align_up(block.count * item_); }
    std::byte* staged(const Block& block) {
        return channel_.buffers.require(
            block.slot, whole_bytes(block) + shares(block).all_places(channel_.ranks()));
    }
    std::byte* results(const Block& block) {
        return channel_.buffers.require(2 + block.slot, block.count * item_);
    }

    Pending scatter(const Block& block) {
        const Shares share = shares(block);
        std::byte* whole = staged(block);
        std::byte* received = whole + whole_bytes(block);
        copy(c_, whole, at(c_.send, block), block.count * item_);
        return channel_.begin(
            block.slot,
            exchange(channel_.comm, kScatterTag, to_others(channel_, [&](int peer, std::size_t p) {
                         return Message{peer, whole + share.offset(p), received + share.place(p),
                                        share.bytes(p), share.bytes(channel_.self())};
                     })));
    }

    Pending reduce_and_gather(const Block& block) {
        const Shares share = shares(block);
        const std::size_t self = channel_.self();
        const std::byte* whole = staged(block);
        const std::byte* received = whole + whole_bytes(block);
        std::byte* result = results(block);
        std::vector<const void*> inputs;
        for (std::size_t rank = 0; rank < channel_.ranks(); ++rank)
            inputs.push_back(rank == self ? whole + share.offset(self)
                                          : received + share.place(rank));
        cpu::reduce(result + share.offset(self), inputs.data(), inputs.size(), share.count(self),
                    c_.dtype, c_.op, c_.scale);
        return channel_.begin(
            2 + block.slot,
            exchange(channel_.comm, kGatherTag, to_others(channel_, [&](int peer, std::size_t p) {
                         return Message{peer, result + share.offset(self), result + share.offset(p),
                                        share.bytes(self), share.bytes(p)};
                     })));
    }

    Channel& channel_;
    const ddp_collective& c_;
    const Deadline& deadline_;
    const std::size_t item_;
    const Blocks blocks_;
};

// Everyone reduces everything.
void one_round(Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    const std::size_t bytes = c.count * dtype_size(c.dtype), stride = align_up(bytes);
    std::byte* all = channel.buffers.require(0, stride * channel.ranks());
    std::byte* mine = all + channel.self() * stride;
    copy(c, mine, c.send, bytes);
    Pending exchanged = channel.begin(
        0, exchange(channel.comm, kGatherTag, to_others(channel, [&](int peer, std::size_t p) {
                        return Message{peer, mine, all + p * stride, bytes, bytes};
                    })));
    channel.wait(exchanged, deadline);
    std::vector<const void*> inputs;
    for (std::size_t rank = 0; rank < channel.ranks(); ++rank)
        inputs.push_back(all + rank * stride);
    cpu::reduce(c.recv, inputs.data(), inputs.size(), c.count, c.dtype, c.op, c.scale);
}

// Elements of a round of a reduce_scatter, in which the rank with the longest part gets about a
// block.
std::size_t room_of(const ddp_collective& c, std::size_t ranks) {
    std::size_t longest = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank)
        longest = std::max(longest, part_count(c, static_cast<int>(rank)));
    const std::size_t like_longest = all_parts(c, static_cast<int>(ranks)) / longest;
    return std::max(kBlockBytes / dtype_size(c.dtype) / ranks * like_longest, ranks);
}

}  // namespace

void direct_allreduce(Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    if (c.count * dtype_size(c.dtype) <= kOneRoundBytes / channel.ranks())
        one_round(channel, c, deadline);
    else
        TwoRounds(channel, c, deadline).run();
}

// The first of the two rounds, with the caller's own shares.
void direct_reduce_scatter(Channel& channel, const ddp_collective& c, const Deadline& deadline) {
    const std::size_t item = dtype_size(c.dtype), ranks = channel.ranks();
    const auto* send = static_cast<const std::byte*>(c.send);
    const backend::Rounds rounds(c, channel.size, room_of(c, ranks));
    const auto own_bytes = [&](std::size_t round) {
        return rounds.count(channel.rank, round) * item;
    };
    // A slot holds what goes to each rank, then what comes from each.
    const std::size_t out_bytes = align_up(rounds.elements() * item);
    const auto slot = [&](const Block& block) {
        return channel.buffers.require(block.slot, out_bytes + ranks * own_bytes(block.at));
    };
    pipeline(
        channel, Blocks(rounds.size(), 1, 1), deadline,
        [&](const Block& block) {
            const std::size_t round = block.at, own = own_bytes(round);
            std::byte* out = slot(block);
            std::byte* in = out + out_bytes;
            auto messages = to_others(channel, [&](int peer, std::size_t p) {
                std::byte* theirs = out + rounds.place(peer) * item;
                const std::size_t bytes = rounds.count(peer, round) * item;
                if (bytes > 0) copy(c, theirs, send + rounds.at(peer, round) * item, bytes);
                return Message{peer, theirs, in + p * own, bytes, own};
            });
            return channel.begin(block.slot,
                                 exchange(channel.comm, kScatterTag, std::move(messages)));
        },
        [&](const Block& block) {
            const std::size_t round = block.at, own = own_bytes(round);
            if (own == 0) return;
            const std::byte* in = slot(block) + out_bytes;
            std::vector<const void*> inputs;
            for (std::size_t rank = 0; rank < ranks; ++rank)
                inputs.push_back(rank == channel.self()
                                     ? send + rounds.at(channel.rank, round) * item
                                     : in + rank * own);
            cpu::reduce(static_cast<std::byte*>(c.recv) + rounds.before(channel.rank, round) * item,
                        inputs.data(), ranks, own / item, c.dtype, c.op, c.scale);
        });
}

}  // namespace libddp::mpi
