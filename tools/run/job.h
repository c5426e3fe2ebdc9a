// The ranks of one node in one generation (a restart makes the next): starts them, watches them, ends them.
//
//     running --a rank failed--> reporting --1 s--> stopping --grace--> killing --> draining --> ended
//        |                                            ^
//        +------------------stop(signal)--------------+
#pragma once

#include <sys/resource.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "guard.h"
#include "loop.h"
#include "orphans.h"
#include "output.h"
#include "process.h"

namespace ddprun {

struct Failure {
    int code = 1;
    bool may_restart = true;  // false: the next attempt would fail in the same way, or somebody wanted the end
    std::string sentence;     // "rank 2 (pid 4711) was killed by signal 9 (SIGKILL)"
};

class Job {
public:
    struct Plan {
        std::vector<std::string> program;
        std::vector<std::vector<std::string>> environments;  // one for each rank of this node
        int first_rank = 0;
        Milliseconds grace{5000};
        std::string log_dir;     // "": no log files
        std::string log_suffix;  // tells the files of a restart from those before
        rlim_t open_files = RLIM_INFINITY;
        std::string host;
    };

    Job(uv_loop_t* loop, Output& output, Guard& guard, Orphans& orphans, Plan plan);
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    void start();
    bool ended() const { return phase_ == Phase::kEnded; }
    // The first failure of a rank that nobody had asked to end.
    const std::optional<Failure>& failure() const { return failure_; }

    // Sends a signal to each rank and nothing more.
    void pass_on(int signal);
    // Sends a signal to the process groups of the ranks, and SIGKILL after the grace.
    void stop(int signal);
    // As after a failure here: the ranks have a moment to report their own errors first.
    void stop_after_report();
    void kill();
    // Reads on after the terminal was congested.
    void resume();

private:
    enum class Phase { kRunning, kReporting, kStopping, kKilling, kDraining, kEnded };
    struct Rank {
        std::unique_ptr<Process> process;
        bool gone = true;                          // neither the process nor anything of its group is left
        std::optional<Clock::time_point> kill_at;  // when what it left behind is killed
    };

    std::shared_ptr<LogFile> open_log(int rank);
    void add_rank(std::size_t local_rank);
    void on_end(Process& process);
    void judge(const Process& process);
    void fail(Failure failure);
    void enter(Phase phase, Milliseconds bound);
    void advance();
    void end_leftovers(Rank& rank);
    void finish_draining();
    bool all_gone() const;
    void abandon(Rank& rank);

    uv_loop_t* const loop_;
    Output& output_;
    Guard& guard_;
    Orphans& orphans_;
    const Plan plan_;
    Phase phase_ = Phase::kRunning;
    Clock::time_point deadline_{};
    std::optional<Failure> failure_;
    std::vector<Rank> ranks_;
    std::vector<int> passed_on_;
    Timer tick_;
};

}  // namespace ddprun
