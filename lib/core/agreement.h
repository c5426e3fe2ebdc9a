// Questions on which all ranks must give the same answer. of: the tag of the context that asks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/group.h"
#include "core/device_streams.h"
#include "core/param_table.h"

namespace libddp {

// Collective. `header` and `params` have to be the same on every rank; params[i] describes
// parameter i, buffers may follow. Throws MISMATCH, the same on every rank, naming the first line
// that differs from rank 0's and the ranks that have it so. The group stays healthy.
void agree_on_model(Group& group, const OpTag& of, const std::string& header,
                    const std::vector<std::string>& params);

// Collective. Breaks the group with MISMATCH if the hashes of the plans differ.
void agree_on_plan(Group& group, const OpTag& of, std::uint64_t hash);

// Collective. `mine` without what another rank has otherwise: -1 stands there.
std::vector<std::int32_t> agree_on_neighbours(Group& group, const OpTag& of,
                                              std::vector<std::int32_t> mine);

// The facts that ranks tell each other at the beginning of a step that depends on them: weights,
// and who has inputs.
struct StepReport {
    double weight = 1;
    std::int64_t own_steps = 0;  // steps that this rank had inputs for
    std::int32_t joined = 0;     // it has no more inputs
    std::int32_t sync = 1;       // this step is to be synced
    std::int64_t cost = 0;       // of a sample in the last step, for BatchShares; 0: unknown
};

struct StepOutcome {
    double total_weight = 0;         // of the ranks that have inputs
    std::int32_t present = 0;        // how many they are
    std::int32_t first_present = 0;  // the lowest of them; 0 if there are none
    std::int32_t first_joined = -1;  // the lowest that has no inputs; -1 if all have
    std::int32_t last_to_join = 0;   // the highest of those that had the most steps
    bool sync = true;
    std::vector<std::int64_t> costs{};  // of each rank; 0: also of one that has no inputs
};

// Collective. A difference in `sync` between ranks with inputs breaks the group.
StepOutcome exchange_step(Group& group, const OpTag& of, const StepReport& mine);

// Collective. Overwrites the data of every entry that has any and is not ignored, bit for bit, with
// that of rank `root`. Small ones of one device travel together. On a device: in the order of the
// context's stream there.
void broadcast_state(Group& group, const OpTag& of, const ContextStreams& streams,
                     const std::vector<const Param*>& entries, std::int32_t root);

}  // namespace libddp
