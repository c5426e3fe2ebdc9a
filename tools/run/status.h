// `ddprun --status`: a table of a job that runs, from its records. It asks neither ddprun nor a
// rank.
#pragma once

#include <string>

namespace ddprun {

// job: the pid of a ddprun, a folder with records, or "": the only job of this user. Shows the
// table until the job ends; once, or if standard output is no terminal: one time. Returns the exit
// status. Throws std::runtime_error if there is no such job.
int show_status(const std::string& job, bool once);

}  // namespace ddprun
