// Broadcast, allgather and reduce_scatter: a short message goes with the posts, a long one is read
// where it lies if that is shared memory, and passes through staging memory otherwise.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backends/common/slices.h"
#include "backends/shm/operations.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp::shm {
namespace {

std::byte* bytes(const void* memory) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(memory));
}

// Bytes of an allgather from another rank, which belong at `to` in recv.
void give(const ddp_collective& c, std::byte* to, const std::byte* from, std::size_t size) {
    if (!c.take) return copy(c, to, from, size);
    if (size == 0) return;
    c.take(c.taker, from, static_cast<std::size_t>(to - bytes(c.recv)), size);
    note_copy(c, size);
}

// Sums this rank's part of what all give. A taker gets each block while it is in a cache.
void sum_part(Team& team, const ddp_collective& c, bool in_post) {
    const std::size_t count = part_count(c, team.rank()), size = dtype_size(c.dtype);
    const std::size_t block = c.take ? DDP_BACKEND_BLOCK_BYTES / size : count;
    std::vector<const std::byte*> parts;
    for (int rank = 0; rank < team.size() && count > 0; ++rank)
        parts.push_back(part_of(
            c, given(team, rank, in_post, sent_bytes(team, c, rank), dtype_alignment(c.dtype)),
            team.rank()));
    std::vector<const void*> inputs(parts.size());
    for (std::size_t at = 0; at < count; at += block) {
        const std::size_t n = std::min(block, count - at);
        for (std::size_t i = 0; i < parts.size(); ++i) inputs[i] = parts[i] + at * size;
        std::byte* const out = bytes(c.recv) + at * size;
        cpu::reduce(out, inputs.data(), inputs.size(), n, c.dtype, c.op, c.scale);
        if (!c.take) continue;
        team.confirm();  // a wrong sum would change what the taker keeps
        c.take(c.taker, out, at * size, n * size);
    }
}

void scatter_staged(Team& team, const ddp_collective& c) {
    const std::size_t size = dtype_size(c.dtype);
    const backend::Rounds rounds(c, team.size(), team.staging_bytes() / size);
    const auto own = [&](int part, std::size_t round) {
        return bytes(c.send) + rounds.at(part, round) * size;
    };
    const auto staged = [&](int rank, int part, std::size_t round) {
        return team.staging(rank, slot_of(round)) + rounds.place(part) * size;
    };
    const auto copy_in = [&](std::size_t round) {
        for (int part = 0; part < team.size(); ++part)
            if (part != team.rank())
                copy(c, staged(team.rank(), part, round), own(part, round),
                     rounds.count(part, round) * size);
    };
    const auto reduce = [&](std::size_t round) {
        const int mine = team.rank();
        const std::size_t count = rounds.count(mine, round);
        if (count == 0) return;
        std::vector<const void*> inputs;
        for (int rank = 0; rank < team.size(); ++rank)
            inputs.push_back(rank == mine ? own(mine, round) : staged(rank, mine, round));
        cpu::reduce(bytes(c.recv) + rounds.before(mine, round) * size, inputs.data(), inputs.size(),
                    count, c.dtype, c.op, c.scale);
    };
    pipeline(team, c, rounds.size(), copy_in, reduce);
    if (!c.take) return;
    team.confirm();  // as above
    take_part(c, team.rank());
}

// The parts of all ranks go to every rank. size_of(rank): in bytes. into(rank): where in recv.
template <class SizeOf, class Into>
void spread_staged(Team& team, const ddp_collective& c, SizeOf size_of, Into into) {
    const std::size_t length = team.staging_bytes();
    std::size_t longest = 0;
    for (int rank = 0; rank < team.size(); ++rank) longest = std::max(longest, size_of(rank));
    const auto range_of = [&](int rank, std::size_t chunk) {
        const std::size_t begin = std::min(chunk * length, size_of(rank));
        return Range{begin, std::min(begin + length, size_of(rank))};
    };
    const auto copy_in = [&](std::size_t chunk) {
        const Range range = range_of(team.rank(), chunk);
        copy(c, team.staging(team.rank(), slot_of(chunk)), bytes(c.send) + range.begin,
             range.count());
    };
    const auto copy_out = [&](std::size_t chunk) {
        for (int rank = 0; rank < team.size(); ++rank) {
            const Range range = range_of(rank, chunk);
            if (rank != team.rank())
                give(c, into(rank) + range.begin, team.staging(rank, slot_of(chunk)),
                     range.count());
        }
    };
    pipeline(team, c, pieces_of(longest, length), copy_in, copy_out);
}

}  // namespace

bool all_sends_shared(const Team& team, const ddp_collective& c) {
    for (int rank = 0; rank < team.size(); ++rank)
        if (sent_bytes(team, c, rank) > 0 && !team.post_of(rank).send.shared()) return false;
    return true;
}

std::size_t sent_bytes(const Team& team, const ddp_collective& c, int rank) {
    if (c.kind == DDP_COLLECTIVE_ALL_TO_ALL)
        return all_parts(Exchanged(c, team.size()).input(rank), team.size()) * dtype_size(c.dtype);
    return c.kind == DDP_COLLECTIVE_REDUCE_SCATTER ? all_parts(c, team.size()) * dtype_size(c.dtype)
                                                   : part_bytes(c, rank);
}

std::size_t inline_bytes(const Team& team, const ddp_collective& c) {
    if (!is_inline(team, c) || c.kind == DDP_COLLECTIVE_BARRIER) return 0;
    if (c.kind == DDP_COLLECTIVE_BROADCAST && c.root != team.rank()) return 0;
    return sent_bytes(team, c, team.rank());
}

bool is_inline(const Team& team, const ddp_collective& c) {
    if (c.kind == DDP_COLLECTIVE_BARRIER) return true;
    // Without counts all ranks give as much.
    for (int rank = 0; rank < (c.counts ? team.size() : 1); ++rank)
        if (sent_bytes(team, c, rank) > kInlineBytes) return false;
    return true;
}

void announce(Team& team, const ddp_collective& c) {
    if (team.posted()) return;
    if (is_inline(team, c)) return team.post(c, inline_bytes(team, c), {}, {});
    team.post(c, 0, team.arena().locate(c.send, sent_bytes(team, c, team.rank())),
              c.kind == DDP_COLLECTIVE_ALL_TO_ALL
                  ? Location{}
                  : team.arena().locate(c.recv, part_bytes(c, team.rank())));
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
        case DDP_COLLECTIVE_ALL_TO_ALL:
            all_to_all(team, c);
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
        team, c, [&](int rank) { return rank == c.root ? size : 0; },
        [&](int) { return bytes(c.recv); });
}

void allgather(Team& team, const ddp_collective& c) {
    const auto size_of = [&](int rank) { return part_bytes(c, rank); };
    const auto place = [&](int rank) { return part_of(c, c.recv, rank); };
    const bool in_post = is_inline(team, c);
    copy(c, place(team.rank()), bytes(c.send), size_of(team.rank()));
    if (!in_post && !all_sends_shared(team, c)) return spread_staged(team, c, size_of, place);
    for (int rank = 0; rank < team.size(); ++rank)
        if (rank != team.rank() && size_of(rank) > 0)
            give(c, place(rank), given(team, rank, in_post, size_of(rank)), size_of(rank));
    if (!in_post) team.barrier(c);
}

void reduce_scatter(Team& team, const ddp_collective& c) {
    const bool in_post = is_inline(team, c);
    if (!in_post && !all_sends_shared(team, c)) return scatter_staged(team, c);
    sum_part(team, c, in_post);
    if (!in_post) team.barrier(c);
}

}  // namespace libddp::shm
