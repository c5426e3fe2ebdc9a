// The Gloo backend: collectives between hosts over TCP.
#pragma once

#include "ddp/backend.h"

namespace libddp {

const ddp_backend* gloo_backend();

// Throws INVALID_ARGUMENT, as create would, where host.options are not ones that gloo knows.
void check_gloo_options(const ddp_backend_host& host);

}  // namespace libddp
