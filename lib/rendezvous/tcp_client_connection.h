// The tcp store client's end of its connection: the thread that reads and writes.
#pragma once

#include <uv.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/loop_thread.h"
#include "rendezvous/outbox.h"
#include "rendezvous/protocol.h"
#include "util/mutex.h"
#include "wire/channel.h"

namespace libddp {

class TcpClientConnection {
public:
    // All on the connection's thread. None throws.
    class Owner {
    public:
        virtual ~Owner() = default;
        virtual void on_answer(std::uint64_t id, Outcome outcome) = 0;
        // A long answer has begun to come. All others come behind it.
        virtual void on_long_answer(std::size_t bytes) = 0;
        // Once, and the last call. graceful: the server said that it was ending on purpose.
        virtual void on_lost(const std::string& reason, bool graceful) = 0;
    };

    // name: the server's, for messages. Throws Error.
    TcpClientConnection(std::unique_ptr<wire::Channel> channel, std::string name, Owner& owner);
    TcpClientConnection(const TcpClientConnection&) = delete;
    TcpClientConnection& operator=(const TcpClientConnection&) = delete;

    // Any thread.
    void send(std::string bytes);
    // Bytes that the socket has not taken.
    std::size_t unsent() const { return unsent_; }
    // Says goodbye, and ends the thread. Not on that thread. Idempotent, at most 1 s.
    void close();

private:
    void turn();
    void talk();
    bool read();
    void watch(bool writes);
    void say_goodbye();
    void end();
    void take_frames();
    void expect_long_answer();
    void lose(const std::string& reason, bool graceful);

    const std::string name_;
    Owner& owner_;
    Mutex mutex_;
    std::vector<std::string> outgoing_ DDP_GUARDED_BY(mutex_);
    bool closed_ DDP_GUARDED_BY(mutex_) = false;
    std::atomic<std::size_t> unsent_{0};
    std::unique_ptr<wire::Channel> channel_;  // null: closed
    uv_poll_t socket_{};
    uv_timer_t farewell_{};
    Outbox outbox_;
    FrameReader frames_;
    bool expects_long_answer_ = false;
    bool leaving_ = false;
    int watched_ = 0;
    LoopThread loop_;
};

}  // namespace libddp
