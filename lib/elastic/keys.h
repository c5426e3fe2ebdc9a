// The keys of an elastic job in its store. Membership writes them, and ddprun reads them.
#pragma once

namespace libddp::elastic_keys {

inline constexpr const char* kJobs = "elastic/";  // of all jobs; the name of the job and "/" follow
inline constexpr const char* kRoster =
    "roster";  // the newest: its number and fence, and a line for each member: the id and its steps
inline constexpr const char* kGone = "gone";    // "gone/ID": how this member went
inline constexpr const char* kLeft = "left";    // politely
inline constexpr const char* kEnded = "ended";  // by the end of its job, or of its program
inline constexpr const char* kDied = "died";

// An id is "NUMBER-HASH-HOST-PID". The number counts those that have come, and the hash is of the
// host, because names of hosts may be the same. With ddprun this is the pid of the process that ddprun started: a
// script may have started the member.
inline constexpr const char* kLaunchPid = "DDP_LAUNCH_PID";

}  // namespace libddp::elastic_keys
