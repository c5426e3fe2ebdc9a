// The built-in backend "hierarchical": shared memory on each host, Gloo between hosts.
#pragma once

#include "ddp/backend.h"

namespace libddp {

const ddp_backend* hierarchical_backend();

}  // namespace libddp
