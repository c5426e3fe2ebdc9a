// Questions on which all ranks must give the same answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/group.h"

namespace libddp {

// Collective. `header` and `params` have to be the same on every rank; params[i] describes parameter i, buffers may
// follow. Throws MISMATCH, the same on every rank, naming the first line that differs from rank 0's and the ranks that
// have it so. The group stays healthy.
void agree_on_model(Group& group, const std::string& header, const std::vector<std::string>& params);

// Collective. Breaks the group with MISMATCH if the hashes of the plans differ.
void agree_on_plan(Group& group, std::uint64_t hash);

}  // namespace libddp
