// Messages over one connection, in order, each with a header that says which operation it belongs
// to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "util/error.h"
#include "wire/channel.h"

namespace libddp::tcp {

enum class MessageType : std::uint32_t {
    kOpening = 0x6f706464,  // what a rank is about to do
    kData = 0x64706464,
    kGoodbye = 0x67706464,  // the rank leaves on purpose
};

// One thread at a time uses it. Never blocks.
class Lane {
public:
    // number: of the lane among those with this peer. Lane 0 carries openings and goodbyes.
    Lane(int peer, std::size_t number, std::unique_ptr<wire::Channel> channel)
        : peer_(peer), number_(number), channel_(std::move(channel)) {}

    int peer() const { return peer_; }
    int fd() const { return channel_->fd(); }

    // Queues a message. Its memory must stay untouched until !sending().
    void send(MessageType type, std::uint64_t operation, const void* data, std::size_t bytes);
    // The next message will be this one, and goes to `into`. Its arrival takes 1 from *missing.
    void expect(MessageType type, std::uint64_t operation, void* into, std::size_t bytes,
                int* missing);

    bool sending() const { return !outgoing_.empty() || unflushed_; }
    bool receiving() const { return !expected_.empty() && fault_ == Fault::kNone; }

    // Moves what can be moved now, and returns whether that was anything. Throws Error: RANK_FAILED
    // if the peer has left, and what the channel throws.
    bool move();

    // Nothing is expected at the moment, and the peer has closed the connection. Returns if it has
    // sent something before: a goodbye, or messages that will be expected later. Otherwise throws
    // Error. ended(): this is known.
    void peer_closed();
    bool ended() const { return ended_; }

    // Why nothing more is received: the peer sends something else than what is expected.
    enum class Fault { kNone, kOtherMessage };
    Fault fault() const { return fault_; }

    // The operation under way has failed: of its messages nothing is read, written or sent any
    // more. cut(): one was half sent, so that nothing can follow it.
    void forget();
    bool cut() const { return cut_; }

    std::unique_ptr<wire::Channel> take_channel() { return std::move(channel_); }

private:
    struct Header {
        MessageType type;
        std::uint32_t reserved;
        std::uint64_t operation;
        std::uint64_t bytes;
    };
    struct Outgoing {
        Header header;
        const char* data;
        std::size_t sent;  // of header and data together
    };
    struct Expected {
        Header header;
        char* into;
        int* missing;
    };

    bool send_some();
    bool receive_some();
    std::size_t receive_once();
    void make_room_ahead();
    Error with_peer(const Error& error) const;
    void read_header();
    void take_data(std::size_t count);

    const int peer_;
    const std::size_t number_;
    std::unique_ptr<wire::Channel> channel_;
    std::deque<Outgoing> outgoing_;
    bool unflushed_ = false;
    std::deque<Expected> expected_;
    // Bytes that have come beyond the message under way.
    std::vector<char> ahead_;
    std::size_t ahead_begin_ = 0, ahead_end_ = 0;
    // The state of the message under way.
    bool have_header_ = false;
    std::size_t received_ = 0;
    Fault fault_ = Fault::kNone;
    bool ended_ = false;
    bool cut_ = false;
};

}  // namespace libddp::tcp
