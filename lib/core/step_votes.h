// The votes of a step: bits of each rank that travel with the step's last bucket and come back as
// those of all ranks. What include/ddp/vote.h promises.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "comm/group.h"
#include "comm/tag.h"
#include "core/observer.h"
#include "core/step.h"
#include "launch/vote_page.h"

namespace libddp {

class Link;

class StepVotes final : public Observer {
public:
    // A level is so many bits, of which all up to it are set: then the OR has the greatest.
    static constexpr std::int32_t kMostLevel = 32;

    struct Outcome {
        std::uint32_t any = 0, all = 0;
        std::int32_t level = 0;
    };

    // Any thread, and in a signal handler. Relaxed: the bits are all that is told.
    void cast(std::uint32_t bits) noexcept { cast_.fetch_or(bits, std::memory_order_relaxed); }
    void cast_level(std::int32_t level) noexcept {
        cast_.fetch_or(((std::uint64_t{1} << level) - 1) << 32, std::memory_order_relaxed);
    }

    // On the launching thread, once a step: the vote of this rank leaves. What is cast later counts
    // in the next step. link: whose first operation with the result is to carry it; null: none is.
    const std::shared_ptr<CarriedWords>& depart(const Step& step, const Link* link);
    // The buckets of the step have ended. Collective, with this tag, if none of them has carried
    // the votes.
    void end(Group& group, const Step& step, const OpTag& tag);
    // The votes of the last step count again, those of ranks that are gone by now, too: other ranks
    // may not know them.
    void recast() noexcept {
        cast_.fetch_or(last_, std::memory_order_relaxed);
        passed_on_ |= heard_;
    }
    const Outcome& outcome() const { return outcome_; }  // of the last step

    void on_forget() override;

private:
    std::atomic<std::uint64_t> cast_{0};
    VoteListener launcher_;
    bool departed_ = false, ended_ = false;  // in this step
    std::uint64_t mine_ = 0;                 // this rank's vote in this step, once it has left
    std::uint64_t last_ = 0;                 // in the last synced step that ended
    std::uint64_t heard_ = 0;                // of all ranks, in that step
    std::uint64_t passed_on_ = 0;            // of other ranks, in the next step
    std::shared_ptr<CarriedWords> carried_;
    Outcome outcome_;
};

}  // namespace libddp
