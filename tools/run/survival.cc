#include "survival.h"

#include <algorithm>

namespace ddprun {
namespace {

std::string ranks_text(int count) {
    return std::to_string(count) + (count == 1 ? " rank" : " ranks");
}

}  // namespace

bool Survival::is_among(const std::vector<std::string>& members, pid_t pid) const {
    return std::any_of(members.begin(), members.end(),
                       [&](const std::string& member) { return roll_->names(member, pid); });
}

void Survival::succeeded(pid_t pid) {
    if (!roll_) return;
    parting_.erase(pid);
    std::vector<std::string> members = roll_->newest();
    const bool is_member = is_among(members, pid);
    // One that is not in the newest roster has trained nothing, or the others have gone on without
    // it.
    const bool parted = roll_->has_left(pid) || (!is_member && !members.empty());
    ++(parted ? parted_ : finished_);
    if (parted || members.empty() || !finishers_.empty()) return;
    finishers_ = std::move(members);
    roll_->finish(finishers_);
}

// The store forgets after a while that a member has left, and a process may join again.
void Survival::note_parting(const std::vector<pid_t>& running) {
    std::erase_if(parting_, [&](pid_t pid) {
        return std::find(running.begin(), running.end(), pid) == running.end();
    });
    const std::vector<std::string> members = roll_->newest();
    for (const pid_t pid : running) {
        if (is_among(members, pid))
            parting_.erase(pid);
        else if (roll_->has_left(pid))
            parting_.insert(pid);
    }
}

Survival::After Survival::failed(bool may_start_again, const std::vector<pid_t>& running) {
    silence_.clear();
    if (may_start_again && !is_ending() && starts_ < rules_.max_starts) {
        silence_ = roll_->silence();
        if (silence_.empty()) {
            ++starts_;
            return After::kStartAgain;
        }
    }
    ++failed_;
    if (roll_ && silence_.empty()) note_parting(running);
    if (left() >= rules_.min_ranks) return After::kGoOn;
    return is_ending() ? After::kFailAtEnd : After::kEnd;
}

std::string Survival::next(After after) const {
    if (!roll_) return "";
    if (after == After::kStartAgain)
        return "it is started again (" + std::to_string(starts_) + " of at most " +
               std::to_string(rules_.max_starts) + ")";
    if (is_ending()) return "others have finished the job, so it is not started again";
    std::string text =
        silence_.empty()
            ? ""
            : "it is not started again, because the store does not answer: " + silence_ + "; ";
    if (after == After::kGoOn) return text + "the others go on with " + ranks_text(left());
    return text + ranks_text(left()) + (left() == 1 ? " is" : " are") +
           " left, fewer than --min-ranks " + std::to_string(rules_.min_ranks) +
           ", so the job ends";
}

bool Survival::is_over(const std::vector<pid_t>& running) {
    const auto now = Clock::now();
    const Milliseconds wait = is_ending() ? kBetweenLooksAtStore : kBetweenIdleLooks;
    if (!roll_ || running.empty() || now - looked_ < wait) return false;
    looked_ = now;
    if (finishers_.empty()) finishers_ = roll_->finishers();
    if (finishers_.empty()) return false;
    if (std::any_of(running.begin(), running.end(),
                    [&](pid_t pid) { return is_among(finishers_, pid); }))
        return false;
    return roll_->all_gone(finishers_);
}

}  // namespace ddprun
