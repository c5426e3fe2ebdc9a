// Decides the fate of a job when one of its ranks has ended. Usually the rank's failure is that of
// the job. An elastic job goes on with fewer ranks, and starts single ones again.
//
// A rank that exits with 0 has left, if it said so to the others, or has finished. When one has
// finished, the job is at its end: nobody is started again, and those that trained with it end in
// their own time. Then whoever still runs has waited for a place in vain. The ddpruns of a job tell
// each other.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "loop.h"
#include "roll.h"

namespace ddprun {

// While the job goes on, each ddprun asks the store so often whether it has finished elsewhere.
inline constexpr Milliseconds kBetweenIdleLooks{1000};

class Survival {
public:
    struct Rules {
        int ranks = 1;       // that ddprun starts
        int min_ranks = 1;   // when fewer are left, the job has failed
        int max_starts = 0;  // how often single ranks are started again, all together
    };
    enum class After {
        kStartAgain,  // this rank
        kGoOn,        // the others
        kFailAtEnd,   // the job has failed, and the others end in their own time
        kEnd,         // the job has failed: the others are ended
    };

    // For a job that ends when any rank fails.
    explicit Survival(int ranks) : rules_{ranks, ranks, 0} {}
    // For an elastic job. roll: its members.
    Survival(const Rules& rules, Roll& roll) : rules_(rules), roll_(&roll) {}

    // It has exited with 0.
    void succeeded(pid_t pid);
    // running: the processes that have not ended.
    After failed(bool may_start_again, const std::vector<pid_t>& running);
    // The next action, for the sentence that says how the rank failed. "": nothing to say.
    std::string next(After after) const;

    // At the end of the job: all who trained have gone, and none of these processes, which still
    // run, is one of them.
    bool is_over(const std::vector<pid_t>& running);
    bool is_ending() const { return finished_ > 0 || !finishers_.empty(); }
    bool is_elastic() const { return roll_ != nullptr; }
    int starts() const { return starts_; }

private:
    bool is_among(const std::vector<std::string>& members, pid_t pid) const;
    void note_parting(const std::vector<pid_t>& running);
    int left() const {
        return rules_.ranks - failed_ - parted_ - static_cast<int>(parting_.size());
    }

    const Rules rules_;
    Roll* const roll_ = nullptr;
    int starts_ = 0;
    int failed_ = 0;           // and were not started again
    int parted_ = 0;           // politely
    std::set<pid_t> parting_;  // have left, and their processes still run
    int finished_ = 0;
    std::string silence_;  // of the store
    // the members of the roster that has finished, here or under another ddprun
    std::vector<std::string> finishers_;
    Clock::time_point looked_{};
};

}  // namespace ddprun
