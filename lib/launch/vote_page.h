// Memory in which a launcher asks its ranks for votes (include/ddp/vote.h). No signal reaches a
// rank's process, where a language may want it for itself: Java ends on SIGTERM, and Julia keeps a
// thread for SIGUSR1.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace libddp {

// One for each rank of the launcher, in a file. All zeros is its initial state. Relaxed: the counts
// are all that is told.
struct VoteSlot {
    static constexpr int kKinds = 2;
    static constexpr std::uint32_t kCheckpoint = 0, kStop = 1;

    std::atomic<std::uint32_t> listeners;         // contexts of the rank that look here
    std::atomic<std::uint32_t> requests[kKinds];  // how often the launcher has asked
    std::uint32_t reserved;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(VoteSlot) == 16);

// The name of the environment variable, whose value is "PATH:SLOT".
inline constexpr const char* kVotesVariable = "DDP_VOTES";

// A context that listens to its launcher, if that has given it a slot.
class VoteListener {
public:
    // Reads the environment. Throws UNAVAILABLE if the slot cannot be mapped.
    VoteListener();
    ~VoteListener();
    VoteListener(const VoteListener&) = delete;
    VoteListener& operator=(const VoteListener&) = delete;

    // The bits of DDP_VOTE_* that the launcher has asked for since the last call.
    std::uint32_t take();

private:
    void* page_ = nullptr;
    std::size_t bytes_ = 0;
    VoteSlot* slot_ = nullptr;  // null: no launcher asks
    std::uint32_t taken_[VoteSlot::kKinds] = {};
};

}  // namespace libddp
