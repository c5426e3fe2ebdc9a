// A secret that all processes of one user on this machine share, for jobs that are given none.
#pragma once

#include <string>

#include "launch/environment.h"

namespace libddp {

// The secret in a file that only this user can read. The first process that asks makes the file: in
// $XDG_RUNTIME_DIR/libddp, or where that is missing in /tmp/libddp-UID or /dev/shm/libddp-UID.
// Processes that ask at the same time get the same one. Throws Error: PERMISSION_DENIED, if none of
// these folders belongs to this user alone.
std::string user_secret(const GetEnv& get = process_env);

}  // namespace libddp
