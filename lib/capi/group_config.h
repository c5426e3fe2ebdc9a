// The options of a group, as group.h and elastic.h take them.
#pragma once

#include "comm/bootstrap.h"
#include "ddp/group.h"

namespace libddp {

// NULL: the defaults. Throws INVALID_ARGUMENT.
GroupConfig read_group_config(const ddp_group_options* options);

}  // namespace libddp
