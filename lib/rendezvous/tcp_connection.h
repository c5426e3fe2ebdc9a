// The server's end of one connection: handshake, framing, back pressure. Lives on the server's loop thread.
#pragma once

#include <uv.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/protocol.h"

namespace libddp {

class TcpConnection {
public:
    class Listener {
    public:
        virtual ~Listener() = default;
        // A frame of an authenticated client. Throwing Error ends the connection.
        virtual void on_frame(TcpConnection& from, const Frame& frame) = 0;
        // The connection is over and its memory may go.
        virtual void on_closed(TcpConnection& connection) = 0;
    };
    using Clock = std::chrono::steady_clock;

    // loop->data: a buffer as read_into_shared (uv_tools.h) wants it.
    TcpConnection(uv_loop_t* loop, std::uint64_t id, const std::string& secret, Listener& listener);
    TcpConnection(const TcpConnection&) = delete;
    TcpConnection& operator=(const TcpConnection&) = delete;

    std::uint64_t id() const { return id_; }
    bool authenticated() const { return state_ == State::kOpen; }
    Clock::time_point opened_at() const { return opened_at_; }

    void accept(uv_stream_t* server);
    void send(std::string bytes);
    // Sends last bytes, then closes when the peer has closed its side. What still comes in is ignored.
    void finish(std::string last);
    void close();

private:
    enum class State { kHello, kProof, kOpen, kFinishing };

    uv_stream_t* stream() { return reinterpret_cast<uv_stream_t*>(&tcp_); }
    void start_reading();
    void receive(std::string_view bytes);
    void advance_handshake();
    void answer_hello();
    void check_proof();
    void drain_frames();
    bool congested() { return uv_stream_get_write_queue_size(stream()) > kCongestion; }
    void on_written(int status);

    // Above this, nothing more is read from a client that does not fetch its answers.
    static constexpr std::size_t kCongestion = std::size_t{64} << 20;
    // Above this (waits that end all at once), the client is given up.
    static constexpr std::size_t kHopeless = std::size_t{1} << 30;

    std::uint64_t id_;
    const std::string& secret_;
    Listener& listener_;
    uv_tcp_t tcp_{};
    State state_ = State::kHello;
    Clock::time_point opened_at_ = Clock::now();
    bool paused_ = false;
    std::string greeting_;  // unfinished handshake message
    std::string client_nonce_;
    std::string server_nonce_;
    FrameReader frames_;
};

}  // namespace libddp
