// The ranks of one host: their shared memory, and how they wait for each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/common/failure.h"
#include "backends/shm/arena.h"
#include "backends/shm/layout.h"
#include "backends/shm/segment.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::shm {

// What a team throws where its ranks are concerned. Numbers of ranks, here and below, are those within the team;
// in messages they are options.names.
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
    // This process's view of what the posts say.
    std::byte* send_of(int rank) { return reach(rank, post_of(rank).send); }
    std::byte* recv_of(int rank) { return reach(rank, post_of(rank).recv); }

    // The parts of a collective are done by whoever has time. Each call gives out one, until all are given out.
    std::optional<std::uint32_t> claim_part(std::uint32_t parts);
    void finish_part(std::uint32_t parts);
    void wait_for_parts(const ddp_collective& c);

    void barrier(const ddp_collective& c);
    std::byte* staging(int rank, int slot) const {
        return staging_[static_cast<std::size_t>(rank * Layout::kSlots + slot)];
    }
    std::size_t staging_bytes() const { return options_.staging_bytes; }

    // The failure is set: wakes whoever waits here, and unless others must find out by themselves tells them to give
    // up too. Any thread.
    void give_up(bool tell_others);

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
    std::byte* reach(int rank, const Location& location);
    RankState& state(int rank) const { return *states_[static_cast<std::size_t>(rank)]; }

    const Options options_;
    const Layout layout_;
    const bool crowded_;  // more ranks than processors: who spins keeps others from coming
    Segment segment_;
    Mapping control_;
    Shared* shared_ = nullptr;
    std::vector<RankState*> states_;
    std::vector<Post*> posts_;
    std::vector<std::byte*> staging_;
    std::unique_ptr<Arena> arena_;
    std::uint32_t sequence_ = 0;  // of the collective under way
    std::uint32_t barriers_ = 0;
    int seat_ = -1;  // processor on which this rank was last seen
    bool posted_ = false;
    const backend::Failure& failure_;
};

}  // namespace libddp::shm
