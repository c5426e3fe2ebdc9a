// Which local address to listen on so that the other ranks can reach it.
#pragma once

#include <string>

#include "backends/gloo/settings.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::gloo_tcp {

// The numeric address to listen on, which every rank can reach. Agrees with the other ranks through the store, which
// also means that all of them have arrived when it returns. What the options or the environment chose stands:
// INVALID_ARGUMENT if it is not an address of this machine. Otherwise: 127.0.0.1 when all ranks are in one network
// namespace of one machine; else the address this machine uses to reach rank 0; for rank 0, the address of its host
// name if that is one of its own, else that of its first interface that is up and not a loopback.
std::string choose_address(const ddp_backend_host& host, const Settings& settings, const Deadline& deadline);

}  // namespace libddp::gloo_tcp
