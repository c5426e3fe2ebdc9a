// Settings from the options string, the environment, the group's flags and the world.
#pragma once

#include <string>

#include "backends/common/address.h"
#include "ddp/backend.h"
#include "wire/channel.h"

namespace libddp::tcp {

enum class Algorithm { kDirect, kRing };

struct Settings {
    Algorithm algorithm = Algorithm::kDirect;
    int lanes = 1;  // connections with each peer, over which long messages are divided
    wire::Protection protection = wire::Protection::kEncrypted;
    backend::Network network;
};

// Throws INVALID_ARGUMENT naming the key or value.
Settings read_settings(const ddp_backend_host& host);

// "encrypted" or "plain".
std::string name_of(wire::Protection protection);

}  // namespace libddp::tcp
