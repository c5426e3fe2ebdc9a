// The job secret: what a client of the store must know. It travels in the environment only.
#pragma once

#include <string>

#include "options.h"

namespace ddprun {

// That of --secret-file. Without the option: one that nobody else has for a job on one node; for several nodes that of
// DDP_SECRET, or of the file that DDP_SECRET_FILE names. Throws std::exception: there is none, or the file is refused.
Secret job_secret(const Options& options);

}  // namespace ddprun
