// All_to_all: each rank reads its parts where the others have them, as for the other collectives.
#include <algorithm>
#include <vector>

#include "backends/common/slices.h"
#include "backends/shm/operations.h"
#include "kernels/parts.h"

namespace libddp::shm {
namespace {

// The parts of one rank's input, in rounds that fit into its staging memory. Every rank computes
// those of all.
std::vector<backend::Rounds> rounds_of(const Team& team, const ddp_collective& c) {
    const Exchanged exchanged(c, team.size());
    std::vector<backend::Rounds> rounds;
    for (int rank = 0; rank < team.size(); ++rank)
        rounds.emplace_back(exchanged.input(rank), team.size(),
                            team.staging_bytes() / dtype_size(c.dtype));
    return rounds;
}

void exchange_staged(Team& team, const ddp_collective& c, const ddp_collective& output) {
    const std::size_t size = dtype_size(c.dtype);
    const auto all = rounds_of(team, c);
    const auto of = [&](int rank) -> const backend::Rounds& {
        return all[static_cast<std::size_t>(rank)];
    };
    std::size_t most = 0;
    for (const backend::Rounds& rounds : all) most = std::max(most, rounds.size());
    const auto staged = [&](int from, int to, std::size_t round) {
        return team.staging(from, slot_of(round)) + of(from).place(to) * size;
    };
    const int mine = team.rank();
    const auto copy_in = [&](std::size_t round) {
        const auto* send = static_cast<const std::byte*>(c.send);
        for (int to = 0; to < team.size(); ++to)
            if (to != mine)
                copy(c, staged(mine, to, round), send + of(mine).at(to, round) * size,
                     of(mine).count(to, round) * size);
    };
    const auto copy_out = [&](std::size_t round) {
        auto* recv = static_cast<std::byte*>(c.recv);
        for (int from = 0; from < team.size(); ++from) {
            if (from != mine)
                copy(c, recv + of(from).before(mine, round) * size, staged(from, mine, round),
                     of(from).count(mine, round) * size);
            recv += part_bytes(output, from);
        }
    };
    pipeline(team, c, most, copy_in, copy_out);
}

}  // namespace

void all_to_all(Team& team, const ddp_collective& c) {
    const Exchanged exchanged(c, team.size());
    std::vector<std::uint64_t> counts;
    const ddp_collective output = exchanged.output(team.rank(), counts);
    const int mine = team.rank();
    const bool in_post = is_inline(team, c);
    const bool staged = !in_post && !all_sends_shared(team, c);
    auto* next = static_cast<std::byte*>(c.recv);
    for (int from = 0; from < team.size(); ++from) {
        const std::size_t size = part_bytes(output, from);
        if (size > 0 && (from == mine || !staged)) {
            const std::byte* all = from == mine
                                       ? static_cast<const std::byte*>(c.send)
                                       : given(team, from, in_post, sent_bytes(team, c, from));
            copy(c, next, part_of(exchanged.input(from), all, mine), size);
        }
        next += size;
    }
    if (staged) return exchange_staged(team, c, output);
    if (!in_post) team.barrier(c);
}

}  // namespace libddp::shm
