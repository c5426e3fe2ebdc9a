// The metrics of a job as Prometheus reads them. docs/ddprun.md lists them.
#pragma once

#include <string>

#include "snapshot.h"

namespace ddprun {

struct JobNow {
    int local_ranks = 1;
    int restarts = 0;
};

// In the text format, version 0.0.4.
std::string metrics_text(const JobNow& job, const Snapshot& snapshot);

}  // namespace ddprun
