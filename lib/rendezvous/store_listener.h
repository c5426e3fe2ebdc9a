// Where clients of the tcp store come in: one address, and the handshakes of those who have not
// proved that they know the job secret.
#pragma once

#include <uv.h>

#include <functional>
#include <memory>
#include <string>

#include "util/deadline.h"
#include "wire/gate.h"
#include "wire/sockets.h"

namespace libddp {

// On the thread of its loop, once that runs.
class StoreListener {
public:
    // Listens when the constructor returns, and calls `admit` for each client that proves itself.
    // Waits while the host's name has no address, or that of another host. Throws Error as
    // TcpServer.
    StoreListener(uv_loop_t* loop, const std::string& host, int port, const std::string& secret,
                  const Deadline& deadline, wire::Gate::Admit admit);
    StoreListener(const StoreListener&) = delete;
    StoreListener& operator=(const StoreListener&) = delete;

    const SocketAddress& address() const { return address_; }
    // Goes on with handshakes. Does not throw. Also every wire::Gate::kLookMs.
    void advance();
    // Nobody comes in any more. Once.
    void close();

private:
    SocketAddress address_;
    std::unique_ptr<wire::Gate> gate_;
    uv_poll_t poll_{};
};

}  // namespace libddp
