// The job secret: what a client of the store must know. It travels in the environment only.
#pragma once

#include <string>

#include "options.h"

namespace ddprun {

// The secret of --secret-file. Without the option: for a job on one node a secret that nobody else
// has; for several nodes the one of DDP_SECRET, or of the file that DDP_SECRET_FILE names. Throws
// std::exception: there is none, or the file is refused.
Secret job_secret(const Options& options);

}  // namespace ddprun
