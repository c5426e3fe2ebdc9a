// Allreduce: a short message is summed by everyone; a long one in parts, where it lies if it lies in shared memory.
#include <cstring>
#include <vector>

#include "backends/shm/operations.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp::shm {
namespace {

// What a rank reduces at a time. Small enough that ranks share the work evenly, large enough that asking for the next
// part costs nothing beside it.
constexpr std::size_t kPartBytes = 64 << 10;

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
    std::byte* at(int rank, Range range) const { return recvs_[static_cast<std::size_t>(rank)] + range.begin * size_; }

private:
    void reduce(Range range, std::size_t outs) {
        for (std::size_t r = 0; r < sends_.size(); ++r) inputs_[r] = sends_[r] + range.begin * size_;
        cpu::reduce_to(outs_.data(), outs, inputs_.data(), inputs_.size(), range.count(), c_.dtype, c_.op, c_.scale);
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
        message.reduce(piece(c.count, size, *part));
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
        between.run(slice, mine.count());
        for (int rank = 0; rank < team.size(); ++rank)
            if (rank != team.rank()) std::memcpy(message.at(rank, mine), slice, mine.count() * dtype_size(c.dtype));
    }
    team.barrier(c);
}

// A chunk of a message of each rank's own, which passes through staging memory.
class StagedMessage {
public:
    StagedMessage(Team& team, const ddp_collective& c, const Between* between)
        : team_(team),
          c_(c),
          between_(between),
          owners_(between ? between->owners : team.size()),
          size_(dtype_size(c.dtype)),
          chunk_(team.staging_bytes() / size_) {}

    std::size_t chunks() const { return pieces_of(c_.count, chunk_); }

    // What other ranks will sum.
    void copy_in(std::size_t chunk) {
        const Range all = piece(c_.count, chunk_, chunk);
        for (int owner = 0; owner < owners_; ++owner)
            if (owner != team_.rank()) copy(staged(team_.rank(), chunk, owner), own(c_.send, all, owner), all, owner);
    }

    // This rank's part: from its own memory and the others' staging, into its own memory and its staging.
    void reduce(std::size_t chunk) {
        const Range all = piece(c_.count, chunk_, chunk);
        const std::size_t count = cut(all.count(), owners_, team_.rank()).count();
        if (count == 0) return;
        inputs_.clear();
        for (int rank = 0; rank < team_.size(); ++rank)
            inputs_.push_back(rank == team_.rank() ? own(c_.send, all, rank) : staged(rank, chunk, team_.rank()));
        void* outs[] = {own(c_.recv, all, team_.rank()), staged(team_.rank(), chunk, team_.rank())};
        cpu::reduce_to(outs, between_ ? 1 : 2, inputs_.data(), inputs_.size(), count, c_.dtype, c_.op, c_.scale);
        if (!between_) return;
        between_->run(outs[0], count);
        std::memcpy(outs[1], outs[0], count * size_);
    }

    // What other ranks have summed.
    void copy_out(std::size_t chunk) {
        const Range all = piece(c_.count, chunk_, chunk);
        for (int owner = 0; owner < owners_; ++owner)
            if (owner != team_.rank()) copy(own(c_.recv, all, owner), staged(owner, chunk, owner), all, owner);
    }

private:
    std::byte* own(const void* memory, Range all, int owner) const {
        auto* bytes = const_cast<std::byte*>(static_cast<const std::byte*>(memory));
        return bytes + (all.begin + cut(all.count(), owners_, owner).begin) * size_;
    }
    std::byte* staged(int rank, std::size_t chunk, int owner) const {
        const Range all = piece(c_.count, chunk_, chunk);
        return team_.staging(rank, slot_of(chunk)) + cut(all.count(), owners_, owner).begin * size_;
    }
    void copy(std::byte* to, const std::byte* from, Range all, int owner) const {
        const std::size_t bytes = cut(all.count(), owners_, owner).count() * size_;
        std::memcpy(to, from, bytes);
        note_copy(c_, bytes);
    }

    Team& team_;
    const ddp_collective& c_;
    const Between* const between_;
    const int owners_;
    const std::size_t size_, chunk_;
    std::vector<const void*> inputs_;
};

void reduce_staged(Team& team, const ddp_collective& c, const Between* between) {
    StagedMessage message(team, c, between);
    pipeline(
        team, c, message.chunks(), [&](std::size_t chunk) { message.copy_in(chunk); },
        [&](std::size_t chunk) { message.reduce(chunk); }, [&](std::size_t chunk) { message.copy_out(chunk); });
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
    cpu::reduce(c.recv, inputs, static_cast<std::size_t>(team.size()), c.count, c.dtype, c.op, c.scale);
    note_copy(c, c.count * dtype_size(c.dtype));
}

}  // namespace

void allreduce(Team& team, const ddp_collective& c, const Between* between) {
    if (!between && is_inline(team, c)) return reduce_inline(team, c);
    if (!all_shared(team)) return reduce_staged(team, c, between);
    if (between) return reduce_shared(team, c, *between);
    reduce_shared(team, c);
}

}  // namespace libddp::shm
