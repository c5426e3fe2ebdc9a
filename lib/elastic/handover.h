// Ranks with the newest state of a job give it to those who come or have undone a step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/group.h"
#include "elastic/membership.h"
#include "elastic/open_step.h"
#include "elastic/parts.h"

namespace libddp {

// The steps of the job that are in the state of this process.
struct AppliedSteps {
    std::int64_t count = -1;  // -1: it has no state yet
    // it has had the state of the job; until then its steps are only loaded
    bool of_job = false;
    // an open step could not be undone: `count` may count one that is in the state
    bool unknown = false;

    // The number for Membership::meet().
    std::int64_t told() const { return unknown ? -1 : of_job ? count : loaded_steps(count); }
    // Throws INVALID_STATE if this rank does not know its state, and no rank of the roster has a
    // newer one.
    void require_known(const Roster& roster) const;
};

// Afterwards all ranks of the roster have the same state, and `applied` says so. `group` is the
// roster's; contexts are on groups that `alone` makes. Collective. Throws Error: this rank then
// still has its state, or applied.unknown is set.
void hand_over(Group& group, const Roster& roster, const JobParts& parts, OpenStep& open,
               const std::function<std::shared_ptr<Group>()>& alone, AppliedSteps& applied);

}  // namespace libddp
