// Blocks on their way through two slots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backends/mpi/channel.h"
#include "ddp/backend.h"

namespace libddp::mpi {

// Bytes between the caller's memory and staging memory.
inline void note_copy(const ddp_collective& c, std::size_t bytes) {
    if (c.copied_bytes) *c.copied_bytes += bytes;
}
inline void copy(const ddp_collective& c, void* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    note_copy(c, bytes);
}

// Elements [at, at + count) of an operation, and which of two slots they use.
struct Block {
    std::size_t at, count, slot;
};

class Blocks {
public:
    // Of at most `bytes`, for `total` elements that take item_bytes each.
    Blocks(std::size_t total, std::size_t item_bytes, std::size_t bytes)
        : total_(total), length_(std::max<std::size_t>(1, bytes / item_bytes)) {}

    std::size_t size() const { return (total_ + length_ - 1) / length_; }
    Block operator[](std::size_t index) const {
        const std::size_t at = index * length_;
        return {at, std::min(length_, total_ - at), index % 2};
    }

private:
    const std::size_t total_, length_;
};

// begin(block) gives what is then under way, end(block) follows when it is complete; while a block is on its way the
// next one is begun. Every rank begins the blocks in the same order, as MPI wants it.
template <class Begin, class End>
void pipeline(Channel& channel, const Blocks& blocks, const Deadline& deadline, Begin begin, End end) {
    Pending under_way[2];
    for (std::size_t i = 0; i <= blocks.size(); ++i) {
        if (i < blocks.size()) under_way[i % 2] = begin(blocks[i]);
        if (i == 0) continue;
        const Block block = blocks[i - 1];
        channel.wait(under_way[block.slot], deadline);
        end(block);
    }
}

}  // namespace libddp::mpi
