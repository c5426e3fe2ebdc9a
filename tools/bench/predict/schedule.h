// The collectives of a step, from libddp itself: it plans the buckets, runs a few steps with the hook on one rank, and records them. The
// schedule is that of the last step in the record.
#pragma once

#include "models.h"
#include "options.h"
#include "predict/timeline.h"

namespace bench {

// Takes as much memory as the gradients. Sets DDP_RECORD, for this process. Throws std::runtime_error.
Schedule find_schedule(const Model& model, const Options& options);

}  // namespace bench
