// The ranks of one host: how they begin a collective, share its work, and end it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "backends/common/failure.h"
#include "backends/shm/arena.h"
#include "backends/shm/control.h"
#include "backends/shm/patience.h"
#include "ddp/backend.h"

namespace libddp::shm {

class Team {
public:
    // Meets the others; at most host.timeout_ms. Throws Error. failure: ends every wait once it is
    // set.
    Team(const ddp_backend_host& host, const TeamOptions& options, const backend::Failure& failure);
    ~Team() { leave(); }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int rank() const { return options_.rank; }
    int size() const { return options_.size; }
    Arena& arena() { return arena_; }

    // A collective begins with this: the others learn that this rank has come, and where its
    // message lies. A short one (inline_bytes > 0) goes along.
    void post(const ddp_collective& c, std::size_t inline_bytes, Location send, Location recv);
    bool posted() const { return posted_; }
    // True once all have come. Looks for at most this long; spinning.
    bool all_here(std::int64_t patience_ns);
    // Waits for the rest. Throws TIMEOUT, RANK_FAILED, ABORTED. With signatures: MISMATCH.
    void meet(const ddp_collective& c);
    const Post& post_of(int rank) const { return control_.post(rank, sequence_ & 1); }
    // This process's view of what the posts say, valid until the next collective. alignment: for
    // arithmetic, that of the numbers.
    std::byte* send_of(int rank, std::size_t bytes, std::size_t alignment = 1) {
        return reach(rank, post_of(rank).send, bytes, alignment);
    }
    std::byte* recv_of(int rank, std::size_t bytes, std::size_t alignment = 1) {
        return reach(rank, post_of(rank).recv, bytes, alignment);
    }

    // The parts of a collective are done by whoever has time. Each call gives out one, until all
    // are given out.
    std::optional<std::uint32_t> claim_part(std::uint32_t parts);
    void finish_part(std::uint32_t parts);
    void wait_for_parts(const ddp_collective& c);

    // Throws if this rank or another has given up. A rank that slept through the others' failure
    // finds all posts and counters as it needs them, but in their memory whatever their programs
    // have written since, or zeros. So call this after the last read of other ranks' memory and
    // before anybody acts on the numbers.
    void confirm() const;

    void barrier(const ddp_collective& c);
    std::byte* staging(int rank, int slot) const { return control_.staging(rank, slot); }
    std::size_t staging_bytes() const { return options_.staging_bytes; }

    // This rank takes part in nothing more: the others need not wait for it. Its memory stays.
    void leave();

    // This rank has failed: tells the others, and wakes whoever waits here. Before the call returns
    // to a program that could change what others read. Any thread.
    void give_up();

private:
    // A counter to which every rank has added so often.
    std::uint32_t from_all(std::uint32_t times) const {
        return times * static_cast<std::uint32_t>(options_.size);
    }
    void compare_signatures(const ddp_collective& c) const;
    void gather_carried(std::uint64_t* words) const;
    void let_go_of_freed_blocks();
    std::byte* reach(int rank, Location location, std::size_t bytes, std::size_t alignment);

    const TeamOptions options_;
    const backend::Failure& failure_;
    Control control_;
    Arena arena_;
    Patience patience_;
    std::uint32_t sequence_ = 0;  // of the collective under way
    std::uint32_t followed_ = 0;  // before which one freed blocks were last unmapped
    std::uint32_t barriers_ = 0;
    bool posted_ = false;
};

}  // namespace libddp::shm
