// The clocks of several machines, put on one: from the collectives that their ranks ran together.
// No rank can end an allreduce before another one has begun it, whatever the clocks say. Each
// collective so bounds the difference of two clocks from both sides, and of hundreds the tightest
// bounds are as close as the time of the shortest collective.
#pragma once

#include <vector>

#include "why/process_record.h"

namespace libddp::record {

// Moves all times of the records to the clock of the machine of the first one, and sets `clock`.
// Where no collective joins two machines their own times of day have to do, and the uncertainty is
// Clock::kUnknown.
void align_clocks(std::vector<ProcessRecord>& records);

}  // namespace libddp::record
