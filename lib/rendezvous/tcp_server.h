// The tcp store's server: one thread, one libuv loop, one state machine. It binds only the address
// it was given.
#pragma once

#include <uv.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/loop_thread.h"
#include "rendezvous/server_memory.h"
#include "rendezvous/store_listener.h"
#include "rendezvous/tcp_connection.h"
#include "rendezvous/wait_list.h"
#include "util/deadline.h"
#include "wire/gate.h"

namespace libddp {

class TcpServer final : TcpConnection::Owner {
public:
    // Listens when the constructor returns. port 0: a free one. Waits while the host's name has no
    // address, or that of another host. Throws Error: ALREADY_EXISTS (port taken),
    // PERMISSION_DENIED, INVALID_ARGUMENT (not an address of this machine), UNAVAILABLE or TIMEOUT
    // (host name), IO.
    TcpServer(const std::string& host, int port, const std::string& secret,
              const Deadline& deadline, const ServerLimits& limits = ServerLimits());
    ~TcpServer() override { stop(); }
    TcpServer(const TcpServer&) = delete;
    TcpServer& operator=(const TcpServer&) = delete;

    int port() const;
    // The numeric address at which this process reaches the server: loopback if it listens on every
    // address.
    std::string local_host() const;

    // Tells every client that the end is intended, then closes. Idempotent, at most about half a
    // second.
    void stop() { loop_.stop(); }

private:
    // The connections call these.
    void on_frame(TcpConnection& from, const Frame& frame) override;
    void on_closed(TcpConnection& connection) override;
    bool ask_room(TcpConnection& connection, std::size_t bytes) override {
        return room_.ask(connection.id(), bytes);
    }
    void give_back_room(TcpConnection& connection) override;
    const ServerLimits& limits() const override { return limits_; }
    void again(TcpConnection& connection) override;

    void begin_stop();
    void admit(wire::Gate::Guest guest);
    void sweep();
    void expire();
    void arm();
    void take_turns();
    void reply(Caller caller, const Outcome& outcome);
    void drop_slow_readers();

    const ServerLimits limits_;
    uv_idle_t turns_{};
    uv_timer_t deadline_timer_{};
    uv_timer_t sweep_timer_{};
    WaitList waits_;
    Answers answers_;
    RequestRoom room_;
    std::map<std::uint64_t, std::unique_ptr<TcpConnection>> connections_;
    std::uint64_t next_id_ = 1;
    std::set<std::uint64_t> again_;
    std::optional<std::chrono::steady_clock::time_point> armed_;
    bool stopping_ = false;
    std::optional<StoreListener> listener_;
    LoopThread loop_;
};

}  // namespace libddp
