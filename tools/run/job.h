// The ranks of one node in one generation (a restart makes the next): starts them, watches them,
// ends them.
//
//     running --a rank failed--> reporting --the others are quiet--> stopping --grace--> killing
//     --> draining --> ended
//        |                                                             ^
//        +---------------------------stop(signal)----------------------+
//
// While ranks report, more of them fail. For a moment these failures are gathered, and then one of
// them is the job's.
//
// An elastic job goes on when a rank fails: survival.h.
#pragma once

#include <sys/resource.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "failure.h"
#include "guard.h"
#include "loop.h"
#include "orphans.h"
#include "output.h"
#include "placement.h"
#include "process.h"
#include "records.h"
#include "survival.h"
#include "votes.h"

namespace ddprun {

class Job {
public:
    struct Plan {
        std::vector<std::string> program;
        int ranks = 1;  // of this node
        // The environment of a rank, counted from 0 on this node, after so many restarts.
        std::function<std::vector<std::string>(int local_rank, int restart)> environment;
        // one for each rank, or none: then ranks may run where ddprun may
        std::vector<Place> places;
        int first_rank = 0;
        Milliseconds report_time{10'000};
        // how long after the first failure another may turn out to be the cause
        Milliseconds gather_time{500};
        bool spans_nodes = false;  // so that the cause may be on another
        Milliseconds grace{5000};
        std::string log_dir;  // "": no log files
        int restart = 0;      // how often all ranks were started before
        rlim_t open_files = RLIM_INFINITY;
        std::string host;
        const Records* records = nullptr;  // what the ranks record
        Survival* survival = nullptr;
        VotePage* votes = nullptr;  // null: no signal to ddprun is a vote
    };

    Job(uv_loop_t* loop, Output& output, Guard& guard, Orphans& orphans, Plan plan);
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    void start();
    bool ended() const { return phase_ == Phase::kEnded; }
    // Why the job failed, once that is certain. Ranks that somebody asked to end do not fail.
    const std::optional<Failure>& failure() const { return failure_; }

    // Asks one rank for a vote. kind: of libddp::VoteSlot. Returns the rank; -1: none counts votes.
    int ask_for_vote(std::uint32_t kind);
    // Sends a signal to each rank and nothing more.
    void pass_on(int signal);
    // Sends a signal to the process groups of the ranks, and SIGKILL after the grace.
    void stop(int signal);
    // As after a failure here: the ranks have time to report their own errors first. Their failures
    // are no more than consequences of what happened elsewhere, unless they have more weight.
    void stop_after_report(Weight elsewhere);
    void kill();
    // Reads on after the terminal was congested.
    void resume();

private:
    enum class Phase { kRunning, kReporting, kStopping, kKilling, kDraining, kEnded };
    struct Rank {
        std::unique_ptr<Process> process;
        int restart = 0;            // how often it was started before
        std::int64_t since_ns = 0;  // when it was started; the system's time
        // neither the process nor anything of its group is left
        bool gone = false;
        std::optional<Clock::time_point> kill_at;  // when what it left behind is killed
        bool again = false;                        // it is started again when it has gone
        Clock::time_point gone_at{};
    };

    std::shared_ptr<LogFile> open_log(int rank, int restart);
    Rank start_rank(int local_rank, int restart);
    void start_all();
    void start_again();
    Rank& rank_of(const Process& process) {
        return ranks_[static_cast<std::size_t>(process.rank() - plan_.first_rank)];
    }
    void on_end(Process& process);
    void judge(Rank& rank);
    void failed(Rank& rank, Failure failure, bool may_start_again);
    void gather(Failure failure);
    void begin_report();
    bool report_is_over();
    void decide();
    void say(const Failure& failure);
    void explain(Failure& failure, bool all_end) const;
    void fail(Failure failure);
    void enter(Phase phase, Milliseconds bound);
    void advance();
    void end_leftovers(Rank& rank);
    void finish_draining();
    bool all_gone() const;
    std::vector<pid_t> running() const;
    void abandon(Rank& rank);

    uv_loop_t* const loop_;
    Output& output_;
    Guard& guard_;
    Orphans& orphans_;
    const Plan plan_;
    Phase phase_ = Phase::kRunning;
    Clock::time_point deadline_{};
    Clock::time_point congested_{};  // when ddprun's own output last was, while ranks report
    std::optional<Failure> failure_;
    std::vector<Failure> gathered_;  // in the order in which they were seen
    bool decided_ = false;           // the failures that follow are not the cause
    Clock::time_point decide_at_{};
    Weight elsewhere_ = Weight::kNone;
    std::vector<Rank> ranks_;
    std::vector<int> passed_on_;
    Timer tick_;
    Timer look_;  // of an elastic job: whether it has finished elsewhere
};

}  // namespace ddprun
