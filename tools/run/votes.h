// Memory in which ddprun asks ranks for votes (ddp/vote.h): --checkpoint-on, --stop-on.
#pragma once

#include <string>

#include "launch/vote_page.h"

namespace ddprun {

class VotePage {
public:
    // Throws std::runtime_error.
    explicit VotePage(int ranks);
    ~VotePage();
    VotePage(const VotePage&) = delete;
    VotePage& operator=(const VotePage&) = delete;

    // The value of DDP_VOTES. Ranks reach the memory while ddprun lives.
    std::string place(int local_rank) const;
    // Its process is about to be started: nothing was asked of it.
    void reset(int local_rank);
    // Whether it has a context that counts votes.
    bool listens(int local_rank) const;
    // kind: of libddp::VoteSlot.
    void ask(int local_rank, std::uint32_t kind);

private:
    const int ranks_;
    int file_ = -1;
    libddp::VoteSlot* slots_ = nullptr;
};

}  // namespace ddprun
