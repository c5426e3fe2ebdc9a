// Gloo's rendezvous over the group's store.
#pragma once

#include <memory>

#include "comm/gloo/settings.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace gloo {
class Context;
namespace transport {
class Device;
}
}  // namespace gloo

namespace libddp::gloo_tcp {

// Listens on settings.host or settings.iface; starts the thread that moves the bytes. INVALID_ARGUMENT if there is no such
// address here.
std::shared_ptr<::gloo::transport::Device> create_device(const Settings& settings);

// Connects with every rank before the deadline. UNAVAILABLE, naming both addresses, if one cannot be reached.
std::shared_ptr<::gloo::Context> connect_all(const ddp_backend_host& host,
                                             std::shared_ptr<::gloo::transport::Device> device, const Deadline& deadline);

}  // namespace libddp::gloo_tcp
