// A small process beside ddprun that outlives it: if ddprun is killed, the guard ends the process
// groups of its ranks. PR_SET_PDEATHSIG ends the ranks themselves, but not the processes that they
// started.
#pragma once

#include <sys/types.h>

#include <string>

#include "loop.h"

namespace ddprun {

class Guard {
public:
    // Throws std::runtime_error if the process cannot be started.
    explicit Guard(uv_loop_t* loop);
    // Tells the guard that all is well, so that it ends.
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

    // The pipe that add() writes to, for a rank that is being started.
    int pipe() const { return pipe_; }
    // The rank announces its own process group. If ddprun did so after starting the rank, ddprun
    // could be killed in between.
    static void add(int pipe, pid_t group);
    void remove(pid_t group);
    // A folder that goes with ddprun, however that ends. Its path has no line break.
    void add_folder(const std::string& path);
    pid_t pid() const { return process_->pid; }

private:
    int pipe_ = -1;
    Handle<uv_process_t> process_;
};

bool is_guard_mode(int argc, char** argv);
int run_guard();

}  // namespace ddprun
