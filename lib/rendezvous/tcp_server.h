// The tcp store's server: one thread, one libuv loop, one state machine. It binds only the address it was given.
#pragma once

#include <memory>
#include <string>

#include "rendezvous/server_memory.h"
#include "util/deadline.h"

namespace libddp {

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
