// The collectives among the ranks of one host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>

#include "backends/shm/team.h"
#include "ddp/backend.h"

namespace libddp::shm {

// An allreduce in two steps with something between them: the ranks below `owners` each sum a slice
// of the message over this host, `between` does with the slice what it likes, and then every rank
// of the host gets it.
struct Between {
    int owners;
    std::function<void(void* slice, std::size_t count)> run;
};

// The whole of a collective: says that this rank has come unless that was said already, waits for
// the others, carries it out.
void announce(Team& team, const ddp_collective& c);
void perform(Team& team, const ddp_collective& c, const Between* between = nullptr);

// The parts of perform().
void allreduce(Team& team, const ddp_collective& c, const Between* between = nullptr);
void broadcast(Team& team, const ddp_collective& c);
void allgather(Team& team, const ddp_collective& c);
void reduce_scatter(Team& team, const ddp_collective& c);
void all_to_all(Team& team, const ddp_collective& c);

// The memory of a message that a rank has given is in the segment.
bool all_sends_shared(const Team& team, const ddp_collective& c);
// A rank's input as the others see it: in its post or in its own memory. alignment: as for
// Team::send_of.
inline const std::byte* given(Team& team, int rank, bool in_post, std::size_t size,
                              std::size_t alignment = 1) {
    return in_post ? team.post_of(rank).data : team.send_of(rank, size, alignment);
}

// The size of a message that a rank gives: its own, or its part of an allgather.
std::size_t sent_bytes(const Team& team, const ddp_collective& c, int rank);
// How many bytes of this rank's own go with the post of the collective; 0 if it is too long for
// that, or has none.
std::size_t inline_bytes(const Team& team, const ddp_collective& c);
bool is_inline(const Team& team, const ddp_collective& c);

// Elements begin .. end.
struct Range {
    std::size_t begin = 0, end = 0;
    std::size_t count() const { return end - begin; }
};

// At least a cache line, in elements.
inline constexpr std::size_t kLine = 64;

// The piece number `index` of `pieces` about equal ones. They begin at multiples of kLine.
inline Range cut(std::size_t count, int pieces, int index) {
    if (index >= pieces) return {count, count};
    const auto at = [&](int i) {
        if (i == pieces) return count;
        return count / static_cast<std::size_t>(pieces) * static_cast<std::size_t>(i) / kLine *
               kLine;
    };
    return {at(index), at(index + 1)};
}

// The number `index` of the pieces of at most `size` elements.
inline Range piece(std::size_t count, std::size_t size, std::size_t index) {
    return {index * size, std::min(count, (index + 1) * size)};
}

inline std::size_t pieces_of(std::size_t count, std::size_t size) {
    return (count + size - 1) / size;
}

inline void note_copy(const ddp_collective& c, std::size_t bytes) {
    if (c.copied_bytes) *c.copied_bytes += bytes;
}

inline void copy(const ddp_collective& c, std::byte* to, const std::byte* from, std::size_t size) {
    if (to == from || size == 0) return;
    std::memcpy(to, from, size);
    note_copy(c, size);
}

// Passes a message through the ranks' staging memory in chunks. In each round one chunk goes
// through each stage; a chunk is in slot `chunk % Layout::kSlots`. All ranks have ended a stage of
// a chunk before any begins its next.
template <class... Stages>
void pipeline(Team& team, const ddp_collective& c, std::size_t chunks, Stages... stages) {
    static_assert(sizeof...(Stages) <= Layout::kSlots);
    const std::size_t rounds = chunks + sizeof...(Stages) - 1;
    for (std::size_t round = 0; round < rounds; ++round) {
        // The next collective begins with a meeting, which the last round can do without.
        if (round > 0) team.barrier(c);
        std::size_t behind = 0;
        const auto run = [&](auto& stage) {
            if (round >= behind && round - behind < chunks) stage(round - behind);
            ++behind;
        };
        (run(stages), ...);
    }
}

inline int slot_of(std::size_t chunk) {
    return static_cast<int>(chunk % Layout::kSlots);
}

}  // namespace libddp::shm
