// Sends one rank's parameters and buffers to everyone.
#pragma once

#include <vector>

#include "comm/group.h"
#include "core/device_lane.h"
#include "core/param_table.h"

namespace libddp {

// Collective. Overwrites the data of every entry that has any and is not ignored, bit for bit, with that of rank `root`.
// Small ones of one device travel together. On a device: in the order of its lane.
void broadcast_state(Group& group, const DeviceLanes& lanes, const std::vector<const Param*>& entries,
                     std::int32_t root);

}  // namespace libddp
