// What lies where in the segment of one host's ranks. All zeros is the initial state of everything.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backends/shm/arena.h"
#include "backends/shm/counter.h"
#include "ddp/backend.h"

namespace libddp::shm {

// A message of at most this many bytes travels with the announcement of its collective. Of a longer one it pays that each
// rank sums only a part.
constexpr std::size_t kInlineBytes = 1 << 10;
constexpr std::size_t kSignatureBytes = 128;

// How many ranks were last seen on each processor. It changes only when the scheduler moves a rank.
class Seats {
public:
    // A rank is here, and no more there; negative: nowhere.
    void move(int there, int here) {
        if (there >= 0) ranks_[index(there)].fetch_sub(1, std::memory_order_relaxed);
        if (here >= 0) ranks_[index(here)].fetch_add(1, std::memory_order_relaxed);
    }
    // Whether more than one rank is here.
    bool shared(int here) const { return here >= 0 && ranks_[index(here)].load(std::memory_order_relaxed) > 1; }

private:
    static constexpr std::size_t kProcessors = 1024;  // more share
    static std::size_t index(int processor) { return static_cast<std::size_t>(processor) % kProcessors; }

    std::atomic<std::uint32_t> ranks_[kProcessors];
};

// For all ranks.
struct Shared {
    Counter arrivals;   // one for each rank and collective
    Counter barrier;    // one for each rank and barrier inside a collective
    Counter completed;  // number of the last collective whose parts are all done
    // Which part of the current collective comes next, and how many are done. The upper half is the collective's number.
    alignas(kApart) std::atomic<std::uint64_t> claimed;
    alignas(kApart) std::atomic<std::uint64_t> done;
    alignas(kApart) std::atomic<std::uint32_t> broken;
    alignas(kApart) Seats seats;
};

// Of one rank.
struct alignas(kApart) RankState {
    std::atomic<std::uint32_t> left;    // it will take part in nothing more
    std::atomic<std::uint32_t> posted;  // number of the last collective that it has come to
    FreedBlocks freed;
};

// What one rank says about a collective. A rank has two and uses them in turn: by the time it comes to the collective
// after the next, everyone has come to the next and so is done with this one.
struct alignas(kApart) Post {
    Location send, recv;
    std::uint64_t signature_bytes;
    std::byte signature[kSignatureBytes];
    alignas(kApart) std::byte data[kInlineBytes];
};

// Offsets of these in the segment.
class Layout {
public:
    static constexpr int kSlots = 3;  // of staging memory: one is filled, one reduced, one emptied

    // staging_bytes: of one slot, a multiple of the page size.
    Layout(int ranks, std::size_t staging_bytes, std::size_t page)
        : ranks_(static_cast<std::uint64_t>(ranks)), staging_bytes_(staging_bytes), page_(page) {}

    std::uint64_t rank_state(int rank) const { return sizeof(Shared) + index(rank) * sizeof(RankState); }
    std::uint64_t post(int rank, std::uint32_t parity) const {
        return rank_state(0) + ranks_ * sizeof(RankState) + (2 * index(rank) + parity) * sizeof(Post);
    }
    std::uint64_t staging(int rank, int slot) const {
        const std::uint64_t start = round_up(post(0, 0) + 2 * ranks_ * sizeof(Post));
        return start + (index(rank) * kSlots + index(slot)) * staging_bytes_;
    }
    // All of the above.
    std::size_t control_bytes() const { return staging(static_cast<int>(ranks_), 0); }
    // Where a rank's blocks begin; they end where the next rank's begin.
    std::uint64_t blocks(int rank) const { return (index(rank) + 1) << kBlockRangeBits; }

private:
    static constexpr int kBlockRangeBits = 44;  // 16 TiB of addresses in the file for all that a rank ever allocates

    static std::uint64_t index(int i) { return static_cast<std::uint64_t>(i); }
    std::uint64_t round_up(std::uint64_t bytes) const { return (bytes + page_ - 1) / page_ * page_; }

    const std::uint64_t ranks_, staging_bytes_, page_;
};

// Of one host. Staging memory must hold an element for each of them.
constexpr int kMostRanks = 4096;

}  // namespace libddp::shm
