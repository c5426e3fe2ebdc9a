// Shared by the tests of channels: connected sockets, a relay between two ends, and both ends of a
// handshake.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/slack.h"
#include "util/error.h"
#include "wire/channel.h"

namespace libddp::wire::testing {

inline constexpr Protection kAll[] = {Protection::kEncrypted, Protection::kPlain};

// Two connected, non-blocking sockets. buffer: bytes that the kernel holds for each, about; 0 for
// the system's choice.
std::pair<Descriptor, Descriptor> connected(int buffer = 0);
std::pair<Descriptor, Descriptor> connected_tcp();

// Everything that can be read now; stops at the end of the connection.
std::string read_all(int fd);
void write_all(int fd, std::string_view bytes);

// Two ends with a relay between them, which passes bytes on when it is told to. A test may look at
// them, and change them.
class Relay {
public:
    Relay();

    Descriptor client;
    Descriptor server;

    struct Direction {
        std::string seen;                                // all that the sender has sent
        std::function<std::string(std::string)> change;  // what goes on in place of bytes that came
        std::size_t most = std::size_t(-1);              // bytes; then the connection is cut
        std::size_t passed = 0;
        std::string waiting;  // for the receiver to take bytes
    };
    Direction up;    // from the client
    Direction down;  // from the server

    // Passes on what has come. True: something has.
    bool pump();
    // Ends the connection of both.
    void cut();

private:
    bool pass(int from, int to, Direction& direction);

    Descriptor client_side_;
    Descriptor server_side_;
};

// Makes a server of OpenSSL's take what its client offers (ALPN).
void accept_any_application(SSL_CTX* context);

Key key_of(const std::string& secret);
Handshake::Lookup knows(std::string identity, const Key& key);

// A handshake as far as it went.
struct End {
    std::unique_ptr<Handshake> handshake;
    bool done = false;
    ErrorInfo error{};

    // True: something has changed.
    bool step();
    bool over() const { return done || !error.ok(); }
};

// Both ends in turns, with `between` after each turn, until neither gets on.
void drive(
    End& client, End& server, const std::function<bool()>& between = [] { return false; });

struct Channels {
    std::unique_ptr<Channel> client;
    std::unique_ptr<Channel> server;
};
// Two channels over these sockets.
Channels open(
    Descriptor client, Descriptor server, Protection protection,
    const std::function<bool()>& between = [] { return false; });
Channels open(Protection protection, int buffer = 0);

std::string random_bytes(std::size_t size, unsigned seed);

// One piece. send_some() returns what it took, receive_some() what came, at most `most` bytes.
std::size_t send_some(Channel& channel, std::string_view bytes);
std::string receive_some(Channel& channel, std::size_t most);

ErrorInfo error_of(const std::function<void()>& call);

}  // namespace libddp::wire::testing
