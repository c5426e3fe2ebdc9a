// How the ranks find each other: the address that a rank listens on, and Gloo's rendezvous over the group's store.
#pragma once

#include <memory>
#include <string>

#include "backends/gloo/settings.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace gloo {
class Context;
namespace transport {
class Device;
}
}  // namespace gloo

namespace libddp::gloo_tcp {

// The numeric address to listen on, which every rank can reach. Agrees with the other ranks through the store, which
// also means that all of them have arrived when it returns. What the options or the environment chose stands:
// INVALID_ARGUMENT if it is not an address of this machine. Otherwise: 127.0.0.1 when all ranks are in one network
// namespace of one machine; else the address this machine uses to reach rank 0; for rank 0, the address of its host
// name if that is one of its own, else that of its first interface that is up and not a loopback.
std::string choose_address(const ddp_backend_host& host, const Settings& settings, const Deadline& deadline);

// Listens on a numeric address of this machine; starts the thread that moves the bytes.
std::shared_ptr<::gloo::transport::Device> create_device(const std::string& address);

// Connects with every rank before the deadline. UNAVAILABLE, naming both addresses, if one cannot be reached.
// number: of this mesh among those between these ranks.
std::shared_ptr<::gloo::Context> connect_all(const ddp_backend_host& host,
                                             std::shared_ptr<::gloo::transport::Device> device,
                                             const Deadline& deadline, int number);

}  // namespace libddp::gloo_tcp
