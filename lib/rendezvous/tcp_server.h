// The tcp store's server: one thread, one libuv loop, one state machine. It binds only the address it was given.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "rendezvous/protocol.h"
#include "util/deadline.h"

namespace libddp {

// How much memory clients may make a server use beside what the store holds, and for how long. Tests set less.
struct ServerLimits {
    // Answers that one client has not read: above the first, its requests wait; above the second (waits that end all at once) it is
    // disconnected.
    std::size_t unread = std::size_t{64} << 20;
    std::size_t hopeless = limits::kFrame + (std::size_t{64} << 20);
    // Answers that no client has read. Above this, the client with the most is disconnected.
    std::size_t answers = std::size_t{1} << 30;
    // Long requests of which only the beginning has come. Requests for which there is no room wait in the socket.
    std::size_t requests = std::size_t{512} << 20;
    // A client whose request does not become complete keeps others waiting so long, and a second more for each 4 MiB.
    std::chrono::milliseconds incomplete{10'000};
};

class TcpServer {
public:
    // Listens when the constructor returns. port 0: a free one. Waits while the host's name has no address, or that of another
    // host.
    // Throws Error: ALREADY_EXISTS (port taken), PERMISSION_DENIED, INVALID_ARGUMENT (not an address of this machine),
    // UNAVAILABLE or TIMEOUT (host name), IO.
    TcpServer(const std::string& host, int port, const std::string& secret, const Deadline& deadline,
              const ServerLimits& limits = ServerLimits());
    ~TcpServer();
    TcpServer(const TcpServer&) = delete;
    TcpServer& operator=(const TcpServer&) = delete;

    int port() const;
    // The numeric address at which this process reaches the server: loopback if it listens on every address.
    std::string local_host() const;

    // Tells every client that the end is intended, then closes. Idempotent, at most about half a second.
    void stop();

private:
    class Loop;
    std::unique_ptr<Loop> loop_;
};

}  // namespace libddp
