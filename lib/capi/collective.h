// Collectives of the program's own, as group.h and all_to_all.h take them.
#pragma once

#include "comm/collective.h"
#include "ddp/group.h"

namespace libddp {

// Hands the work to the caller, or waits for the end when the caller wants none. Throws Error.
void start_collective(ddp_group* group, Collective collective, ddp_work** out);

}  // namespace libddp
