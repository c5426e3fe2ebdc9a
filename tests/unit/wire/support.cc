#include "support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <stdexcept>

namespace libddp::wire::testing {

std::pair<Descriptor, Descriptor> connected(int buffer) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        throw std::runtime_error("socketpair failed");
    for (int fd : ends)
        if (buffer > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::pair<Descriptor, Descriptor> connected_tcp() {
    Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener.get(), raw, size) != 0 || listen(listener.get(), 1) != 0 ||
        getsockname(listener.get(), raw, &size) != 0)
        throw std::runtime_error("listen failed");
    Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    connect(client.get(), raw, size);
    return {std::move(client),
            Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK))};
}

std::string read_all(int fd) {
    std::string bytes;
    char buffer[65536];
    for (ssize_t count; (count = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
        bytes.append(buffer, static_cast<std::size_t>(count));
    return bytes;
}

void write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        ssize_t count = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count > 0)
            bytes.remove_prefix(static_cast<std::size_t>(count));
        else if (errno != EAGAIN)
            return;
    }
}

Relay::Relay() {
    std::tie(client, client_side_) = connected();
    std::tie(server, server_side_) = connected();
}

bool Relay::pass(int from, int to, Direction& direction) {
    std::string bytes = read_all(from);
    direction.seen += bytes;
    if (!bytes.empty() && direction.change) bytes = direction.change(std::move(bytes));
    direction.waiting += bytes;
    const std::size_t size = std::min(direction.waiting.size(), direction.most - direction.passed);
    if (size == 0) return !bytes.empty();
    const ssize_t count = ::send(to, direction.waiting.data(), size, MSG_NOSIGNAL);
    if (count <= 0) return !bytes.empty();
    direction.waiting.erase(0, static_cast<std::size_t>(count));
    direction.passed += static_cast<std::size_t>(count);
    if (direction.passed == direction.most) cut();
    return true;
}

bool Relay::pump() {
    if (!client_side_) return false;
    const bool upwards = pass(client_side_.get(), server_side_.get(), up);
    return (client_side_ && pass(server_side_.get(), client_side_.get(), down)) || upwards;
}

void Relay::cut() {
    client_side_.reset();
    server_side_.reset();
}

void accept_any_application(SSL_CTX* context) {
    SSL_CTX_set_alpn_select_cb(
        context,
        [](SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
           unsigned, void*) {
            *chosen = offered + 1;
            *size = offered[0];
            return SSL_TLSEXT_ERR_OK;
        },
        nullptr);
}

Key key_of(const std::string& secret) {
    return derive_key(secret, "a test");
}

Handshake::Lookup knows(std::string identity, const Key& key) {
    return [identity, key](std::string_view asked) {
        return asked == identity ? std::optional(key) : std::nullopt;
    };
}

bool End::step() {
    if (over()) return false;
    try {
        done = handshake->advance() == Handshake::Wants::kNothing;
    } catch (const Error& failure) {
        error = failure.info();
    }
    return over();
}

void drive(End& client, End& server, const std::function<bool()>& between) {
    // A handshake has few turns; bytes that travel one by one have many.
    for (int idle = 0, turns = 0; idle < 3 && turns < 100'000; ++turns) {
        bool moved = client.step();
        moved |= between();
        moved |= server.step();
        moved |= between();
        idle = moved ? 0 : idle + 1;
    }
}

Channels open(Descriptor client, Descriptor server, Protection protection,
              const std::function<bool()>& between) {
    const Key key = key_of("s3cret");
    End one{Handshake::client(std::move(client), "me", key, protection)};
    End two{Handshake::server(std::move(server), knows("me", key), protection)};
    drive(one, two, between);
    EXPECT_TRUE(one.done) << one.error.message;
    EXPECT_TRUE(two.done) << two.error.message;
    return {one.handshake->take_channel(), two.handshake->take_channel()};
}

Channels open(Protection protection, int buffer) {
    auto [client, server] = connected(buffer);
    return open(std::move(client), std::move(server), protection);
}

std::string random_bytes(std::size_t size, unsigned seed) {
    std::mt19937 random(seed);
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
}

std::size_t send_some(Channel& channel, std::string_view bytes) {
    iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    return channel.send(&piece, 1);
}

std::string receive_some(Channel& channel, std::size_t most) {
    std::string bytes(most, '\0');
    iovec piece{bytes.data(), most};
    bytes.resize(channel.receive(&piece, 1));
    return bytes;
}

ErrorInfo error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.info();
    }
    return {};
}

}  // namespace libddp::wire::testing
