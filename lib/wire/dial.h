// How a client comes to a channel: attempts, each of which connects and runs the handshake, and
// pauses between them.
#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "util/descriptors.h"
#include "wire/channel.h"
#include "wire/sockets.h"

namespace libddp::wire {

// One attempt. One thread at a time uses it. Never blocks.
class Dial {
public:
    // The time of an attempt. A peer may be stopped, or a packet lost: then another attempt gets
    // through.
    static constexpr std::chrono::milliseconds kLongest{10'000};

    // Throws Error: LIMIT (no descriptor is left), UNAVAILABLE.
    Dial(const SocketAddress& address, std::string identity, const Key& key, Protection protection);

    // Goes on as far as it can. Null: call it again when waits_for() is ready. Throws Error:
    // UNAVAILABLE if nobody listens, and what Handshake::advance() throws. The attempt is then
    // over.
    std::unique_ptr<Channel> advance();
    pollfd waits_for() const;
    // Somebody has accepted the connection.
    bool accepted() const { return handshake_ != nullptr; }

private:
    bool connected() const;

    const std::string identity_;
    const Key key_;
    const Protection protection_;
    Descriptor socket_;  // until it is connected
    std::unique_ptr<Handshake> handshake_;
    Handshake::Wants wants_ = Handshake::Wants::kRead;
};

// How long to wait between attempts: longer each time, and a little more or less than that, because
// all ranks of a large job begin to knock at the same moment.
class Pauses {
public:
    std::chrono::milliseconds next();

private:
    static constexpr std::chrono::milliseconds kFirst{20}, kLongest{500};

    std::chrono::milliseconds pause_ = kFirst;
    std::optional<std::minstd_rand> random_;  // seldom needed
};

}  // namespace libddp::wire
