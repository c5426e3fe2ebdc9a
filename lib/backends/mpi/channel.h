// The view of a collective on its group: the ranks, a way to have MPI called, and memory to call it
// with. Long messages pass through that memory in blocks.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "backends/mpi/driver.h"
#include "ddp/backend.h"
#include "device/memory.h"
#include "util/deadline.h"

namespace libddp::mpi {

// Memory between the caller's buffers and MPI. Memory that MPI was given can never be taken back,
// so it gets this memory and not the caller's: an operation that is given up leaves it to MPI.
class MpiBuffers {
public:
    static constexpr std::size_t kSlots = 4;

    // Aligned to 64 bytes. What was in the slot is lost if it has to grow.
    std::byte* require(std::size_t slot, std::size_t bytes) {
        auto& [memory, size] = buffers_[slot];
        if (bytes > size) {
            memory = allocate_zeroed(bytes);
            size = bytes;
        }
        return memory.get();
    }
    // Keeps the memory of the slot alive.
    std::shared_ptr<const void> keep(std::size_t slot) const { return buffers_[slot].memory; }

private:
    struct Buffer {
        std::shared_ptr<std::byte> memory;
        std::size_t size = 0;
    };
    std::array<Buffer, kSlots> buffers_;
};

struct Channel {
    Driver& driver;
    const MPI_Comm comm;
    const int rank, size;
    const std::atomic<bool>& aborted;
    const ddp_backend_host& host;
    MpiBuffers buffers = {};

    std::size_t ranks() const { return static_cast<std::size_t>(size); }
    std::size_t self() const { return static_cast<std::size_t>(rank); }

    // `start` reads and writes the memory of this slot and nothing else.
    Pending begin(std::size_t slot, Start start) {
        return {driver, std::move(start), buffers.keep(slot)};
    }
    void wait(Pending& pending, const Deadline& deadline) {
        pending.wait(deadline, aborted, &host);
    }
};

// Counts the bytes between the caller's memory and MpiBuffers.
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
    // Makes blocks of at most `bytes`, for `total` elements that take item_bytes each.
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

// begin(block) gives what is then under way, end(block) follows when it is complete; while a block
// is on its way the next one is begun. Every rank begins the blocks in the same order, as MPI wants
// it.
template <class Begin, class End>
void pipeline(Channel& channel, const Blocks& blocks, const Deadline& deadline, Begin begin,
              End end) {
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
