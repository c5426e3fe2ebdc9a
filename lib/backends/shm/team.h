// The ranks of one host: their shared memory, what lies where in it, and how they wait for each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/common/failure.h"
#include "backends/shm/arena.h"
#include "backends/shm/counter.h"
#include "backends/shm/segment.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::shm {

// A message of at most this many bytes travels with the announcement of its collective. For a longer one it pays
// that each rank sums only a part.
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

// In the segment, for all ranks. All zeros is the initial state of everything there.
struct Shared {
    Counter arrivals;   // one for each rank and collective
    Counter barrier;    // one for each rank and barrier inside a collective
    Counter completed;  // number of the last collective whose parts are all done
    // Which part of the current collective comes next, and how many are done. The upper half is the collective's
    // number.
    alignas(kApart) std::atomic<std::uint64_t> claimed;
    alignas(kApart) std::atomic<std::uint64_t> done;
    // A rank has given up. Its memory may hold anything from then on.
    alignas(kApart) std::atomic<std::uint32_t> broken;
    alignas(kApart) Seats seats;
};

// One for each rank.
struct alignas(kApart) RankState {
    std::atomic<std::uint32_t> left;    // it will take part in nothing more
    std::atomic<std::uint32_t> posted;  // number of the last collective that it has come to
    FreedBlocks freed;
};

// The announcement of a collective by one rank. A rank has two and alternates: when it comes to the collective after
// the next, everyone has come to the next and so is done with this one.
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
    static constexpr int kBlockRangeBits = 44;  // 16 TiB of addresses in the file for what a rank has allocated

    static std::uint64_t index(int i) { return static_cast<std::uint64_t>(i); }
    std::uint64_t round_up(std::uint64_t bytes) const { return (bytes + page_ - 1) / page_ * page_; }

    const std::uint64_t ranks_, staging_bytes_, page_;
};

// The most ranks of one host. Staging memory must hold an element for each of them.
constexpr int kMostRanks = 4096;

// An error of a team that concerns its ranks. Numbers of ranks, here and below, are those within the team; in messages
// they are options.names.
class TeamError : public Error {
    using Error::Error;
};

class Team {
public:
    struct Options {
        int rank;
        int size;
        std::string prefix;         // of its keys in the store
        std::size_t staging_bytes;  // how much memory of its own a rank passes through shared memory at a time
        std::vector<int> names{};   // of the ranks in messages; empty: their numbers here
    };

    // Meets the others; at most host.timeout_ms. Throws Error. failure: ends every wait once it is set.
    Team(const ddp_backend_host& host, const Options& options, const backend::Failure& failure);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int rank() const { return options_.rank; }
    int size() const { return options_.size; }
    Arena& arena() { return *arena_; }

    // A collective begins with this: the others learn that this rank has come, and where its message lies. A short one
    // (inline_bytes > 0) goes along.
    void post(const ddp_collective& c, std::size_t inline_bytes, Location send, Location recv);
    bool posted() const { return posted_; }
    // True once all have come. Looks for at most this long; spinning.
    bool all_here(std::int64_t patience_ns);
    // Waits for the rest. Throws TIMEOUT, RANK_FAILED, ABORTED. With signatures: MISMATCH.
    void meet(const ddp_collective& c);
    const Post& post_of(int rank) const { return *posts_[static_cast<std::size_t>(2 * rank) + (sequence_ & 1)]; }
    // This process's view of what the posts say, valid until the next collective. alignment: for arithmetic, that of the numbers.
    std::byte* send_of(int rank, std::size_t bytes, std::size_t alignment = 1) {
        return reach(rank, post_of(rank).send, bytes, alignment);
    }
    std::byte* recv_of(int rank, std::size_t bytes, std::size_t alignment = 1) {
        return reach(rank, post_of(rank).recv, bytes, alignment);
    }

    // The parts of a collective are done by whoever has time. Each call gives out one, until all are given out.
    std::optional<std::uint32_t> claim_part(std::uint32_t parts);
    void finish_part(std::uint32_t parts);
    void wait_for_parts(const ddp_collective& c);

    // Throws if this rank or another has given up. A rank that slept through the others' failure finds all posts and
    // counters as it needs them, but in their memory whatever their programs have written since, or zeros. So call this
    // after the last read of other ranks' memory and before anybody acts on the numbers.
    void confirm() const;

    void barrier(const ddp_collective& c);
    std::byte* staging(int rank, int slot) const {
        return staging_[static_cast<std::size_t>(rank * Layout::kSlots + slot)];
    }
    std::size_t staging_bytes() const { return options_.staging_bytes; }

    // This rank takes part in nothing more: the others need not wait for it. Its memory stays.
    void leave();

    // This rank has failed: tells the others, and wakes whoever waits here. Before the call returns to a program that
    // could change what others read. Any thread.
    void give_up();
    // Throws the failure, if there is one.
    void check_failure();

private:
    void make_segment(const ddp_backend_host& host, const Deadline& deadline);
    void join_segment(const ddp_backend_host& host, const Deadline& deadline);
    void map_control();
    void wait(Counter& counter, std::uint32_t target, const ddp_collective& c);
    bool spin(const Counter& counter, std::uint32_t target, std::int64_t nanoseconds);
    void take_seat(int processor);
    void sleep(Counter& counter, std::uint32_t target, std::int64_t timeout_ms);
    ErrorInfo describe_timeout() const;
    void check_others(Counter& counter, std::uint32_t target) const;
    void compare_signatures(const ddp_collective& c) const;
    int name_of(int rank) const {
        return options_.names.empty() ? rank : options_.names[static_cast<std::size_t>(rank)];
    }
    void let_go_of_freed_blocks();
    std::byte* reach(int rank, Location location, std::size_t bytes, std::size_t alignment);
    RankState& state(int rank) const { return *states_[static_cast<std::size_t>(rank)]; }

    const Options options_;
    const Layout layout_;
    const bool crowded_;  // more ranks than usable_processors(): who spins keeps others from coming
    Segment segment_;
    Mapping control_;
    Shared* shared_ = nullptr;
    std::vector<RankState*> states_;
    std::vector<Post*> posts_;
    std::vector<std::byte*> staging_;
    std::unique_ptr<Arena> arena_;
    std::uint32_t sequence_ = 0;  // of the collective under way
    std::uint32_t followed_ = 0;  // before which one freed blocks were last unmapped
    std::uint32_t barriers_ = 0;
    int seat_ = -1;  // processor on which this rank was last seen
    bool posted_ = false;
    const backend::Failure& failure_;
};

}  // namespace libddp::shm
