// Which processes share a machine, and what the kernel says of one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace libddp {

// The same for processes that can share memory and meet at a local socket: the boot of the kernel
// and the network namespace. A host name says neither: containers of one machine have several, and
// machines of one image the same. DDP_HOST_ID, if set, says it instead.
std::string host_id();

// "10.0.0.2:29500", with brackets round an IPv6 address.
std::string host_and_port(const std::string& host, int port);

// For messages and names of files: two hosts may have the same.
std::string host_name();

struct ProcessState {
    char letter;            // as in /proc/PID/stat: T is stopped
    std::uint64_t started;  // as the kernel counts: a pid may be used again
};
// Empty: there is no such process.
std::optional<ProcessState> process_state(std::int32_t pid);

}  // namespace libddp
