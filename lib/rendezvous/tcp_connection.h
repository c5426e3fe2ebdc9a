// The tcp store server's end of one connection: frames, back pressure.
#pragma once

#include <uv.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "rendezvous/loop_thread.h"
#include "rendezvous/outbox.h"
#include "rendezvous/protocol.h"
#include "rendezvous/server_memory.h"
#include "wire/channel.h"
#include "wire/gate.h"

namespace libddp {

// Lives on the server's loop thread. After close() it only waits for on_closed().
class TcpConnection {
public:
    // The server. None of these throws, but for on_frame.
    class Owner {
    public:
        virtual ~Owner() = default;
        // Throwing Error ends the connection.
        virtual void on_frame(TcpConnection& from, const Frame& frame) = 0;
        // The connection is over and its memory may go.
        virtual void on_closed(TcpConnection& connection) = 0;
        // Memory for a long request of which only the beginning has come. False: none now; the
        // owner calls room_given() later.
        virtual bool ask_room(TcpConnection& connection, std::size_t bytes) = 0;
        virtual void give_back_room(TcpConnection& connection) = 0;
        virtual const ServerLimits& limits() const = 0;
        // The owner calls turn() soon.
        virtual void again(TcpConnection& connection) = 0;
    };

    // guest: of a client that proved itself. total: what answers of all connections hold
    // (outbox.h). Throws Error.
    TcpConnection(LoopThread& loop, std::uint64_t id, wire::Gate::Guest guest, std::size_t& total,
                  Owner& owner);
    TcpConnection(const TcpConnection&) = delete;
    TcpConnection& operator=(const TcpConnection&) = delete;

    std::uint64_t id() const { return id_; }
    const std::string& peer() const { return peer_; }  // "10.0.0.2:40112"
    bool closed() const { return uv_is_closing(reinterpret_cast<const uv_handle_t*>(&poll_)) != 0; }
    std::size_t unsent() const { return outbox_.bytes(); }

    // Says which version the server speaks, and listens. Once.
    void begin(bool same_version);
    void send(std::string bytes);
    void send(std::string header, SharedBytes rest);
    // Sends last bytes, then closes when the peer has closed its side. Bytes that still come in are
    // ignored.
    void finish(std::string last);
    void close();
    void turn() { on_event(0, UV_READABLE | UV_WRITABLE); }
    void room_given();

private:
    enum class State { kOpen, kFinishing };

    void on_event(int status, int events);
    void read();
    bool drain_frames();
    void finish_on();
    void watch();
    void watch(int events);
    void drop_room();
    bool congested() const { return outbox_.bytes() > owner_.limits().unread; }

    const std::uint64_t id_;
    Owner& owner_;
    char* const buffer_;
    const std::string peer_;
    uv_poll_t poll_{};
    int watched_ = 0;
    State state_ = State::kOpen;
    std::unique_ptr<wire::Channel> channel_;
    bool congested_ = false;
    enum class Room { kNone, kAwaited, kHeld } room_ = Room::kNone;  // for a long request
    bool shut_ = false;
    Outbox outbox_;
    FrameReader frames_;
};

}  // namespace libddp
