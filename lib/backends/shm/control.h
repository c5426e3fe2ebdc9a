// The shared memory of the ranks of one host: what lies where in it, and how each rank comes to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/shm/arena.h"
#include "backends/shm/counter.h"
#include "backends/shm/segment.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::shm {

// A message of at most this many bytes travels with the announcement of its collective. For a
// longer one it pays that each rank sums only a part.
constexpr std::size_t kInlineBytes = 1 << 10;
constexpr std::size_t kSignatureBytes = 128;

// How many ranks were last seen on each processor. It changes only when the scheduler moves a rank.
// Relaxed: nobody acts on it but to wait in another way.
class Seats {
public:
    // A rank is here, and no more there; negative: nowhere.
    void move(int there, int here) {
        if (there >= 0) ranks_[index(there)].fetch_sub(1, std::memory_order_relaxed);
        if (here >= 0) ranks_[index(here)].fetch_add(1, std::memory_order_relaxed);
    }
    // Whether more than one rank is here.
    bool shared(int here) const {
        return here >= 0 && ranks_[index(here)].load(std::memory_order_relaxed) > 1;
    }

private:
    static constexpr std::size_t kProcessors = 1024;  // more share
    static std::size_t index(int processor) {
        return static_cast<std::size_t>(processor) % kProcessors;
    }

    std::atomic<std::uint32_t> ranks_[kProcessors];
};

// In the segment, for all ranks. All zeros is the initial state of everything there.
struct Shared {
    Counter arrivals;   // one for each rank and collective
    Counter barrier;    // one for each rank and barrier inside a collective
    Counter completed;  // number of the last collective whose parts are all done
    // Which part of the current collective comes next, and how many are done. The upper half is the
    // collective's number.
    alignas(kApart) std::atomic<std::uint64_t> claimed;
    alignas(kApart) std::atomic<std::uint64_t> done;
    // A rank has given up. Its memory may hold anything from then on.
    alignas(kApart) std::atomic<std::uint32_t> broken;
    alignas(kApart) Seats seats;
};

// One for each rank.
struct alignas(kApart) RankState {
    std::atomic<std::uint32_t> left;  // it will take part in nothing more
    // number of the last collective that it has come to, for messages
    std::atomic<std::uint32_t> posted;
    FreedBlocks freed;
};

// The announcement of a collective by one rank. A rank has two and alternates: when it comes to the
// collective after the next, everyone has come to the next and so is done with this one.
struct alignas(kApart) Post {
    Location send, recv;
    std::uint64_t signature_bytes;
    std::byte signature[kSignatureBytes];
    std::uint64_t carried[2];
    alignas(kApart) std::byte data[kInlineBytes];
};

// Offsets of these in the segment.
class Layout {
public:
    static constexpr int kSlots = 3;  // of staging memory: one is filled, one reduced, one emptied

    // staging_bytes: of one slot, a multiple of the page size.
    Layout(int ranks, std::size_t staging_bytes, std::size_t page)
        : ranks_(static_cast<std::uint64_t>(ranks)), staging_bytes_(staging_bytes), page_(page) {}

    std::uint64_t rank_state(int rank) const {
        return sizeof(Shared) + index(rank) * sizeof(RankState);
    }
    std::uint64_t post(int rank, std::uint32_t parity) const {
        return rank_state(0) + ranks_ * sizeof(RankState) +
               (2 * index(rank) + parity) * sizeof(Post);
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
    // 16 TiB of addresses in the file for what a rank has allocated
    static constexpr int kBlockRangeBits = 44;

    static std::uint64_t index(int i) { return static_cast<std::uint64_t>(i); }
    std::uint64_t round_up(std::uint64_t bytes) const {
        return (bytes + page_ - 1) / page_ * page_;
    }

    const std::uint64_t ranks_, staging_bytes_, page_;
};

// The most ranks of one host. Staging memory must hold an element for each of them.
constexpr int kMostRanks = 4096;

struct TeamOptions {
    int rank;
    int size;
    std::string prefix;  // of its keys in the store
    // how much memory of its own a rank passes through shared memory at a time
    std::size_t staging_bytes;
    std::vector<int> names{};  // of the ranks in messages; empty: their numbers here

    int name_of(int other) const {
        return names.empty() ? other : names[static_cast<std::size_t>(other)];
    }
};

// This rank's view of the segment.
class Control {
public:
    // Rank 0 makes the segment, and waits until the others have it. Throws Error.
    Control(const ddp_backend_host& host, const TeamOptions& options, const Deadline& deadline);

    Segment& segment() { return segment_; }
    const Layout& layout() const { return layout_; }
    Shared& shared() const { return *at<Shared>(0); }
    RankState& state(int rank) const { return *at<RankState>(layout_.rank_state(rank)); }
    Post& post(int rank, std::uint32_t parity) const {
        return *at<Post>(layout_.post(rank, parity));
    }
    std::byte* staging(int rank, int slot) const {
        return at<std::byte>(layout_.staging(rank, slot));
    }
    // Makes everyone look up who waits for a counter.
    void wake_all() const;

private:
    template <class T>
    T* at(std::uint64_t offset) const {
        return reinterpret_cast<T*>(mapping_.data() + offset);
    }

    const Layout layout_;
    Segment segment_;
    Mapping mapping_;
};

}  // namespace libddp::shm
