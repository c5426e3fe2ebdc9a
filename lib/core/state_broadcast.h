// Sends rank 0's parameters and buffers to everyone.
#pragma once

#include <vector>

#include "comm/group.h"
#include "core/param_table.h"

namespace libddp {

// Collective. Overwrites the data of every entry that has any, bit for bit, with rank 0's. Small ones travel together.
void broadcast_state(Group& group, const std::vector<const Param*>& entries);

}  // namespace libddp
