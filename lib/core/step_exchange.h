// What ranks tell each other at the beginning of a step, where the step depends on it: weights, and who has inputs.
#pragma once

#include <cstdint>

#include "comm/group.h"

namespace libddp {

struct StepReport {
    double weight = 1;
    std::int64_t own_steps = 0;  // steps that this rank had inputs for
    std::int32_t joined = 0;     // it has no more inputs
    std::int32_t sync = 1;       // this step is to be synced
};

struct StepOutcome {
    double total_weight = 0;         // of the ranks that have inputs
    std::int32_t present = 0;        // how many they are
    std::int32_t first_present = 0;  // the lowest of them; 0 if there are none
    std::int32_t first_joined = -1;  // the lowest that has no inputs; -1 if all have
    std::int32_t last_to_join = 0;   // the highest of those that had the most steps
    bool sync = true;
};

// Collective. A difference in `sync` between ranks with inputs breaks the group.
StepOutcome exchange_step(Group& group, const StepReport& mine);

}  // namespace libddp
