// Which processes share a machine.
#pragma once

#include <string>

namespace libddp {

// The same for processes that can share memory and meet at a local socket: the boot of the kernel and the network
// namespace. A host name says neither: containers of one machine have several, and machines of one image the same.
// DDP_HOST_ID, if set, says it instead.
std::string host_id();

}  // namespace libddp
