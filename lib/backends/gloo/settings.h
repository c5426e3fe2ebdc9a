// Settings from the options string, the group's flags and the world.
#pragma once

#include "backends/common/address.h"
#include "ddp/backend.h"

namespace libddp::gloo_tcp {

enum class Algorithm { kDirect, kRing, kBcube };

struct Settings {
    Algorithm algorithm = Algorithm::kDirect;
    int lanes = 1;  // sets of connections over which a long allreduce is divided
    backend::Network network;
};

// Throws INVALID_ARGUMENT naming the key or value.
Settings read_settings(const ddp_backend_host& host);

// DDP_BACKEND_* of a transport with this algorithm.
std::uint32_t capabilities_of(Algorithm algorithm, int world_size);

}  // namespace libddp::gloo_tcp
