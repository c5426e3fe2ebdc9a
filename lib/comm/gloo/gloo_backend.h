// The Gloo backend: collectives between hosts over TCP.
#pragma once

#include "ddp/backend.h"

namespace libddp {

const ddp_backend* gloo_backend();

}  // namespace libddp
