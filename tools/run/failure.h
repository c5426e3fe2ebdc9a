// Why a job fails. A rank that dies makes its peers fail too, and ddprun may see their exits first:
// a peer that has heard of a death exits before the kernel is done with the dead process.
#pragma once

#include <cstdint>
#include <string>

#include "process.h"

namespace ddprun {

// The weight of an exit as the cause, from the least: of several failures the greatest is the
// cause, and among equals the first.
enum class Weight {
    kNone,
    kStatus,    // a rank exited with a status other than 0, as ranks do that report another's death
    kAbort,     // SIGABRT, SIGPIPE: a rank gave up by itself, perhaps because of another's death
    kSignal,    // another signal that ddprun did not send, such as SIGSEGV
    kKill,      // SIGKILL, which no rank brings about itself
    kLauncher,  // ddprun's own: a program that cannot run, a signal to ddprun, a node that was lost
};

Weight weight_of(const Ending& ending);

struct Failure {
    int code = 1;
    // false: the next attempt would fail in the same way, or somebody wanted the end
    bool may_restart = true;
    std::string sentence;  // "rank 2 (pid 4711) was killed by signal 9 (SIGKILL)"
    Weight weight = Weight::kLauncher;
    int rank = -1;              // whose failure it is; -1: of none
    std::int64_t since_ns = 0;  // when its process was started; only of a rank
    std::string next{};         // what happens next, if that needs saying
};

}  // namespace ddprun
