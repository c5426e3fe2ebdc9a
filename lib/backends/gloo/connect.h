// How the ranks connect: Gloo's rendezvous over the group's store.
#pragma once

#include <memory>
#include <string>

#include "ddp/backend.h"
#include "util/deadline.h"

namespace gloo {
class Context;
namespace transport {
class Device;
}
}  // namespace gloo

namespace libddp::gloo_tcp {

// Listens on a numeric address of this machine; starts the thread that moves the bytes.
std::shared_ptr<::gloo::transport::Device> create_device(const std::string& address);

// Connects with every rank before the deadline. UNAVAILABLE, naming both addresses, if one cannot
// be reached. number: of this mesh among those between these ranks.
std::shared_ptr<::gloo::Context> connect_all(const ddp_backend_host& host,
                                             std::shared_ptr<::gloo::transport::Device> device,
                                             const Deadline& deadline, int number);

}  // namespace libddp::gloo_tcp
