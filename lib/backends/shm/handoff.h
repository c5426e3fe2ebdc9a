// How a descriptor gets from one process to the others of its group: over a local socket that lives
// as long as that takes.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "util/deadline.h"
#include "util/descriptors.h"

struct pollfd;

namespace libddp::shm {

// Gives a descriptor to every process of the same user that knows the token, until it is destroyed.
// Any other client costs one descriptor until kPatience, or until kMostCallers came after it.
class HandoffServer {
public:
    static constexpr std::size_t kMostCallers = 64;
    static constexpr std::chrono::seconds kPatience{5};

    explicit HandoffServer(int fd);
    ~HandoffServer();
    HandoffServer(const HandoffServer&) = delete;
    HandoffServer& operator=(const HandoffServer&) = delete;

    // For receive_descriptor: the name of a socket, which every process of the host can read in
    // /proc/net/unix, and the token. Only those may see the address who may have the memory.
    std::string address() const { return name_ + ' ' + token_; }
    const std::string& name() const { return name_; }

private:
    using Clock = std::chrono::steady_clock;
    // One that has not said the token yet.
    struct Caller {
        Descriptor connection;
        Clock::time_point came;
    };

    void serve() noexcept;
    int patience_ms() const noexcept;
    void hear(const pollfd* waits) noexcept;
    bool take_in() noexcept;
    void dismiss_oldest() noexcept;
    void make_room() noexcept;
    bool answered(int connection) noexcept;

    const int fd_;
    const std::string name_;
    const std::string token_;
    const Descriptor listener_;
    const Descriptor stop_;
    // closed to take a caller in when the process has no descriptor left
    Descriptor spare_;
    std::vector<Caller> callers_;  // the oldest first; it has room for kMostCallers
    std::thread thread_;
};

// Asks for the descriptor, which the caller owns. address: that of the server. Throws TIMEOUT,
// PERMISSION_DENIED, UNAVAILABLE, RANK_FAILED, LIMIT, UNSUPPORTED, INTERRUPTED.
int receive_descriptor(const std::string& address, const Deadline& deadline);

}  // namespace libddp::shm
