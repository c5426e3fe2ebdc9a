// The address on which a rank listens for the others.
#pragma once

#include <string>

#include "ddp/backend.h"
#include "util/deadline.h"
#include "util/options.h"

namespace libddp::backend {

// The network as the options or the environment name it.
struct Network {
    std::string iface;  // "": choose an address
    std::string host;   // "": choose an address

    // From the options iface and host, or from the environment if they say nothing. Throws
    // INVALID_ARGUMENT.
    static Network from(OptionReader& options);
};

// The numeric address to listen on, which every rank can reach. Agrees with the other ranks through
// the store, which also means that all of them have arrived when it returns. The choice of
// `network` stands: INVALID_ARGUMENT if it is not an address of this machine. Otherwise: 127.0.0.1
// when all ranks are in one network namespace of one machine; else the address this machine uses to
// reach rank 0; for rank 0, the address of its host name if that is one of its own, else that of
// its first interface that is up and not a loopback.
std::string choose_address(const ddp_backend_host& host, const Network& network,
                           const Deadline& deadline);

}  // namespace libddp::backend
