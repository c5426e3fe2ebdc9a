// Broadcast, allgather and reduce_scatter: a short message goes with the posts, a long one is read
// where it lies if that is shared memory, and passes through staging memory otherwise.
#include <cstring>
#include <vector>

#include "backends/shm/operations.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp::shm {
namespace {

bool all_sends_shared(const Team& team) {
    for (int rank = 0; rank < team.size(); ++rank)
        if (!team.post_of(rank).send.shared()) return false;
    return true;
}

std::byte* bytes(const void* memory) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(memory));
}

// A rank's input as the others see it: in its post or in its own memory. alignment: as for
// Team::send_of.
const std::byte* given(Team& team, int rank, bool in_post, std::size_t size,
                       std::size_t alignment = 1) {
    return in_post ? team.post_of(rank).data : team.send_of(rank, size, alignment);
}

void copy(const ddp_collective& c, std::byte* to, const std::byte* from, std::size_t size) {
    if (to == from || size == 0) return;
    std::memcpy(to, from, size);
    note_copy(c, size);
}

// Sums this rank's part of what all give.
void sum_part(Team& team, const ddp_collective& c, bool in_post) {
    const std::size_t part = c.count * dtype_size(c.dtype);
    std::vector<const void*> inputs;
    for (int rank = 0; rank < team.size(); ++rank)
        inputs.push_back(given(team, rank, in_post, part * static_cast<std::size_t>(team.size()),
                               dtype_alignment(c.dtype)) +
                         part * static_cast<std::size_t>(team.rank()));
    cpu::reduce(c.recv, inputs.data(), inputs.size(), c.count, c.dtype, c.op, c.scale);
}

void scatter_staged(Team& team, const ddp_collective& c) {
    const std::size_t size = dtype_size(c.dtype), ranks = static_cast<std::size_t>(team.size());
    // A chunk holds the same elements of every rank's part.
    const std::size_t length = team.staging_bytes() / size / ranks;
    const auto part = [&](const void* memory, std::size_t rank, Range range) {
        return bytes(memory) + (rank * c.count + range.begin) * size;
    };
    const auto copy_in = [&](std::size_t chunk) {
        const Range range = piece(c.count, length, chunk);
        for (std::size_t rank = 0; rank < ranks; ++rank)
            copy(c, team.staging(team.rank(), slot_of(chunk)) + rank * length * size,
                 part(c.send, rank, range), range.count() * size);
    };
    const auto reduce = [&](std::size_t chunk) {
        const Range range = piece(c.count, length, chunk);
        const auto mine = static_cast<std::size_t>(team.rank());
        std::vector<const void*> inputs;
        for (int rank = 0; rank < team.size(); ++rank)
            inputs.push_back(team.staging(rank, slot_of(chunk)) + mine * length * size);
        cpu::reduce(part(c.recv, 0, range), inputs.data(), ranks, range.count(), c.dtype, c.op,
                    c.scale);
    };
    pipeline(team, c, pieces_of(c.count, length), copy_in, reduce);
}

// Every giver's message goes to every rank. into(giver): where in recv.
template <class IsGiver, class Into>
void spread_staged(Team& team, const ddp_collective& c, IsGiver is_giver, Into into) {
    const std::size_t total = c.count * dtype_size(c.dtype), length = team.staging_bytes();
    const auto copy_in = [&](std::size_t chunk) {
        const Range range = piece(total, length, chunk);
        if (is_giver(team.rank()))
            copy(c, team.staging(team.rank(), slot_of(chunk)), bytes(c.send) + range.begin,
                 range.count());
    };
    const auto copy_out = [&](std::size_t chunk) {
        const Range range = piece(total, length, chunk);
        for (int rank = 0; rank < team.size(); ++rank)
            if (rank != team.rank() && is_giver(rank))
                copy(c, into(rank) + range.begin, team.staging(rank, slot_of(chunk)),
                     range.count());
    };
    pipeline(team, c, pieces_of(total, length), copy_in, copy_out);
}

}  // namespace

std::size_t inline_bytes(const Team& team, const ddp_collective& c) {
    if (!is_inline(team, c) || c.kind == DDP_COLLECTIVE_BARRIER) return 0;
    if (c.kind == DDP_COLLECTIVE_BROADCAST && c.root != team.rank()) return 0;
    const std::size_t own = c.count * dtype_size(c.dtype);
    return c.kind == DDP_COLLECTIVE_REDUCE_SCATTER ? own * static_cast<std::size_t>(team.size())
                                                   : own;
}

bool is_inline(const Team& team, const ddp_collective& c) {
    if (c.kind == DDP_COLLECTIVE_BARRIER) return true;
    const std::size_t own = c.count * dtype_size(c.dtype);
    const std::size_t ranks =
        c.kind == DDP_COLLECTIVE_REDUCE_SCATTER ? static_cast<std::size_t>(team.size()) : 1;
    return own <= kInlineBytes / ranks;
}

void announce(Team& team, const ddp_collective& c) {
    if (team.posted()) return;
    if (is_inline(team, c)) return team.post(c, inline_bytes(team, c), {}, {});
    const std::size_t own = c.count * dtype_size(c.dtype);
    const std::size_t ranks =
        c.kind == DDP_COLLECTIVE_REDUCE_SCATTER ? static_cast<std::size_t>(team.size()) : 1;
    team.post(c, 0, team.arena().locate(c.send, own * ranks), team.arena().locate(c.recv, own));
}

void perform(Team& team, const ddp_collective& c, const Between* between) {
    announce(team, c);
    team.meet(c);
    switch (c.kind) {
        case DDP_COLLECTIVE_ALLREDUCE:
            allreduce(team, c, between);
            break;
        case DDP_COLLECTIVE_BROADCAST:
            broadcast(team, c);
            break;
        case DDP_COLLECTIVE_ALLGATHER:
            allgather(team, c);
            break;
        case DDP_COLLECTIVE_REDUCE_SCATTER:
            reduce_scatter(team, c);
            break;
        // a barrier is the meeting itself
        default:
            break;
    }
    team.confirm();
}

void broadcast(Team& team, const ddp_collective& c) {
    const std::size_t size = c.count * dtype_size(c.dtype);
    const bool root = team.rank() == c.root, in_post = is_inline(team, c);
    if (root) copy(c, bytes(c.recv), bytes(c.send), size);
    if (in_post || team.post_of(c.root).send.shared()) {
        if (!root) copy(c, bytes(c.recv), given(team, c.root, in_post, size), size);
        if (!in_post) team.barrier(c);
        return;
    }
    spread_staged(
        team, c, [&](int rank) { return rank == c.root; }, [&](int) { return bytes(c.recv); });
}

void allgather(Team& team, const ddp_collective& c) {
    const std::size_t size = c.count * dtype_size(c.dtype);
    const auto place = [&](int rank) {
        return bytes(c.recv) + static_cast<std::size_t>(rank) * size;
    };
    const bool in_post = is_inline(team, c);
    copy(c, place(team.rank()), bytes(c.send), size);
    if (!in_post && !all_sends_shared(team))
        return spread_staged(
            team, c, [](int) { return true; }, place);
    for (int rank = 0; rank < team.size(); ++rank)
        if (rank != team.rank()) copy(c, place(rank), given(team, rank, in_post, size), size);
    if (!in_post) team.barrier(c);
}

void reduce_scatter(Team& team, const ddp_collective& c) {
    const bool in_post = is_inline(team, c);
    if (!in_post && !all_sends_shared(team)) return scatter_staged(team, c);
    sum_part(team, c, in_post);
    if (!in_post) team.barrier(c);
}

}  // namespace libddp::shm
