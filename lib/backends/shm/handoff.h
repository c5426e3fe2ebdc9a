// How a descriptor gets from one process to the others of its group: over a local socket that lives as long as that takes.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include "util/deadline.h"
#include "util/descriptors.h"

namespace libddp::shm {

// Gives a descriptor to every process of the same user that asks, until it is destroyed.
class HandoffServer {
public:
    explicit HandoffServer(int fd);
    ~HandoffServer();
    HandoffServer(const HandoffServer&) = delete;
    HandoffServer& operator=(const HandoffServer&) = delete;

    // Where to ask. Nobody can guess it.
    const std::string& name() const { return name_; }

private:
    void serve() noexcept;
    void make_room() noexcept;

    const int fd_;
    const std::string name_;
    const Descriptor listener_;
    const Descriptor stop_;
    Descriptor spare_;  // closed to take a caller in when the process has no descriptor left
    std::thread thread_;
};

// Asks for the descriptor, which the caller owns. Throws TIMEOUT, PERMISSION_DENIED, UNAVAILABLE, RANK_FAILED, LIMIT,
// UNSUPPORTED.
int receive_descriptor(const std::string& name, const Deadline& deadline);

}  // namespace libddp::shm
