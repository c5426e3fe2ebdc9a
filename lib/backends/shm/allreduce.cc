// Allreduce: a short message is summed by everyone; a long one in parts, where it lies if it lies
// in shared memory.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/shm/operations.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp::shm {
namespace {

// The bytes that a rank reduces at a time. Small enough that ranks share the work evenly, large
// enough that asking for the next part costs nothing beside it.
constexpr std::size_t kPartBytes = 64 << 10;
static_assert(kPartBytes == DDP_BACKEND_BLOCK_BYTES);

bool all_shared(const Team& team) {
    for (int rank = 0; rank < team.size(); ++rank)
        if (!team.post_of(rank).send.shared() || !team.post_of(rank).recv.shared()) return false;
    return true;
}

// A message that lies in shared memory on every rank.
class SharedMessage {
public:
    SharedMessage(Team& team, const ddp_collective& c) : c_(c), size_(dtype_size(c.dtype)) {
        for (int rank = 0; rank < team.size(); ++rank) {
            sends_.push_back(team.send_of(rank, c.count * size_, dtype_alignment(c.dtype)));
            recvs_.push_back(team.recv_of(rank, c.count * size_, dtype_alignment(c.dtype)));
        }
        inputs_.resize(sends_.size());
        outs_.resize(sends_.size());
    }

    // Into the result of every rank, or of one.
    void reduce(Range range) {
        for (std::size_t r = 0; r < recvs_.size(); ++r) outs_[r] = recvs_[r] + range.begin * size_;
        reduce(range, outs_.size());
    }
    void reduce_into(int rank, Range range) {
        outs_[0] = at(rank, range);
        reduce(range, 1);
    }
    std::byte* at(int rank, Range range) const {
        return recvs_[static_cast<std::size_t>(rank)] + range.begin * size_;
    }

private:
    void reduce(Range range, std::size_t outs) {
        for (std::size_t r = 0; r < sends_.size(); ++r)
            inputs_[r] = sends_[r] + range.begin * size_;
        cpu::reduce_to(outs_.data(), outs, inputs_.data(), inputs_.size(), range.count(), c_.dtype,
                       c_.op, c_.scale);
    }

    const ddp_collective& c_;
    const std::size_t size_;
    std::vector<std::byte*> sends_, recvs_;
    std::vector<const void*> inputs_;
    std::vector<void*> outs_;
};

void reduce_shared(Team& team, const ddp_collective& c) {
    SharedMessage message(team, c);
    const std::size_t size = kPartBytes / dtype_size(c.dtype);
    const auto parts = static_cast<std::uint32_t>(pieces_of(c.count, size));
    while (const auto part = team.claim_part(parts)) {
        const Range range = piece(c.count, size, *part);
        message.reduce(range);
        if (c.take)
            c.take(c.taker, message.at(team.rank(), range), *part * kPartBytes,
                   range.count() * dtype_size(c.dtype));
        team.finish_part(parts);
    }
    team.wait_for_parts(c);
}

void reduce_shared(Team& team, const ddp_collective& c, const Between& between) {
    SharedMessage message(team, c);
    const Range mine = cut(c.count, between.owners, team.rank());
    if (mine.count() > 0) {
        message.reduce_into(team.rank(), mine);
        std::byte* slice = message.at(team.rank(), mine);
        team.confirm();  // a wrong sum would spread to other hosts
        between.run(slice, mine.count());
        for (int rank = 0; rank < team.size(); ++rank)
            if (rank != team.rank())
                std::memcpy(message.at(rank, mine), slice, mine.count() * dtype_size(c.dtype));
    }
    team.barrier(c);
}

// A message of each rank's own, which passes through staging memory. Each owner sums one slice. A
// chunk holds a part of every slice.
class StagedMessage {
public:
    StagedMessage(Team& team, const ddp_collective& c, int owners)
        : team_(team), c_(c), owners_(owners), size_(dtype_size(c.dtype)) {
        for (int owner = 0; owner < owners_; ++owner)
            longest_ = std::max(longest_, cut(c_.count, owners_, owner).count());
        const std::size_t room = team_.staging_bytes() / size_ / static_cast<std::size_t>(owners_);
        part_ = std::min(longest_, room < kLine ? room : room / kLine * kLine);
    }

    std::size_t chunks() const { return pieces_of(longest_, part_); }

    // Copies this rank's input to where other ranks sum it.
    void copy_in(std::size_t chunk) {
        for (int owner = 0; owner < owners_; ++owner) {
            const Range range = part(chunk, owner);
            if (owner != team_.rank())
                copy(staged(team_.rank(), chunk, owner), own(c_.send, range), range);
        }
    }

    // This rank's part: from its own memory and the others' staging, into its own memory, and for
    // the others into its staging.
    void reduce(std::size_t chunk, bool for_others) {
        const Range mine = part(chunk, team_.rank());
        if (mine.count() == 0) return;
        inputs_.clear();
        for (int rank = 0; rank < team_.size(); ++rank)
            inputs_.push_back(rank == team_.rank() ? own(c_.send, mine)
                                                   : staged(rank, chunk, team_.rank()));
        void* outs[] = {own(c_.recv, mine), staged(team_.rank(), chunk, team_.rank())};
        cpu::reduce_to(outs, for_others ? 2 : 1, inputs_.data(), inputs_.size(), mine.count(),
                       c_.dtype, c_.op, c_.scale);
    }

    // This rank's part from its own memory into its staging, as reduce() for others does at once.
    void offer(std::size_t chunk) {
        const Range mine = part(chunk, team_.rank());
        if (mine.count() == 0) return;
        std::memcpy(staged(team_.rank(), chunk, team_.rank()), own(c_.recv, mine),
                    mine.count() * size_);
    }

    // Copies results that other ranks have summed.
    void copy_out(std::size_t chunk) {
        for (int owner = 0; owner < owners_; ++owner) {
            const Range range = part(chunk, owner);
            if (owner != team_.rank())
                copy(own(c_.recv, range), staged(owner, chunk, owner), range);
        }
    }

    // Where a range of the message is in this rank's own memory.
    std::byte* own(const void* memory, Range range) const {
        return const_cast<std::byte*>(static_cast<const std::byte*>(memory)) + range.begin * size_;
    }

private:
    Range part(std::size_t chunk, int owner) const {
        const Range slice = cut(c_.count, owners_, owner);
        const std::size_t begin = std::min(slice.begin + chunk * part_, slice.end);
        return {begin, std::min(begin + part_, slice.end)};
    }
    std::byte* staged(int rank, std::size_t chunk, int owner) const {
        return team_.staging(rank, slot_of(chunk)) +
               static_cast<std::size_t>(owner) * part_ * size_;
    }
    void copy(std::byte* to, const std::byte* from, Range range) const {
        const std::size_t bytes = range.count() * size_;
        if (bytes == 0) return;
        std::memcpy(to, from, bytes);
        note_copy(c_, bytes);
    }

    Team& team_;
    const ddp_collective& c_;
    const int owners_;
    const std::size_t size_;
    // elements of the longest slice, and of a slice in a chunk
    std::size_t longest_ = 0, part_ = 0;
    std::vector<const void*> inputs_;
};

void reduce_staged(Team& team, const ddp_collective& c) {
    StagedMessage message(team, c, team.size());
    pipeline(
        team, c, message.chunks(), [&](std::size_t chunk) { message.copy_in(chunk); },
        [&](std::size_t chunk) { message.reduce(chunk, true); },
        [&](std::size_t chunk) { message.copy_out(chunk); });
}

// `between` gets the whole slice at once, as from reduce_shared: on another host the messages may
// be in the other kind of memory.
void reduce_staged(Team& team, const ddp_collective& c, const Between& between) {
    StagedMessage message(team, c, between.owners);
    pipeline(
        team, c, message.chunks(), [&](std::size_t chunk) { message.copy_in(chunk); },
        [&](std::size_t chunk) { message.reduce(chunk, false); });
    const Range mine = cut(c.count, between.owners, team.rank());
    team.confirm();  // as above
    if (mine.count() > 0) between.run(message.own(c.recv, mine), mine.count());
    // Nobody is behind in what offer() overwrites: copy_in() does not use a rank's own place in its
    // staging.
    pipeline(
        team, c, message.chunks(), [&](std::size_t chunk) { message.offer(chunk); },
        [&](std::size_t chunk) { message.copy_out(chunk); });
}

void reduce_inline(Team& team, const ddp_collective& c) {
    constexpr int kFew = 16;
    const void* few[kFew];
    std::vector<const void*> many;
    const void** inputs = few;
    if (team.size() > kFew) {
        many.resize(static_cast<std::size_t>(team.size()));
        inputs = many.data();
    }
    for (int rank = 0; rank < team.size(); ++rank) inputs[rank] = team.post_of(rank).data;
    cpu::reduce(c.recv, inputs, static_cast<std::size_t>(team.size()), c.count, c.dtype, c.op,
                c.scale);
    note_copy(c, c.count * dtype_size(c.dtype));
}

}  // namespace

void allreduce(Team& team, const ddp_collective& c, const Between* between) {
    if (between)
        return all_shared(team) ? reduce_shared(team, c, *between)
                                : reduce_staged(team, c, *between);
    if (!is_inline(team, c) && all_shared(team)) return reduce_shared(team, c);
    is_inline(team, c) ? reduce_inline(team, c) : reduce_staged(team, c);
    if (c.take) take_share(c, c.recv, team.rank(), team.size());
}

}  // namespace libddp::shm
