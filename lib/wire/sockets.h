// Name resolution and socket settings that the tcp server and client share.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "util/deadline.h"
#include "util/descriptors.h"

namespace libddp {

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t size = 0;

    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    std::string host() const;  // numeric
    int port() const;
    SocketAddress with_port(int port) const;
    bool is_loopback() const;  // 127.0.0.0/8, also as ::ffff:127.0.0.0/104, and ::1
};

// Whether `host` is an address, which needs no resolver, and no name.
bool is_numeric(const std::string& host);

// The addresses of a host name or number, never none. Throws Error: UNAVAILABLE if there are none
// now (a name may appear later, while a cluster starts), TIMEOUT if the resolver does not answer in
// time.
std::vector<SocketAddress> resolve(const std::string& host, int port, const Deadline& deadline);

// For how long the kernel hears nothing of a peer before it ends a connection, at least: where
// nothing is sent, it looks every few seconds.
inline constexpr int kSilentConnectionMs = 15'000;

// A non-blocking socket that listens on an address, or none, with errno. Port 0: the kernel picks a
// port, or with DDP_PORTS it is the highest free one of these. Throws Error: LIMIT if each of these
// is taken, INVALID_ARGUMENT if DDP_PORTS is malformed.
Descriptor listening_socket(const SocketAddress& address);

// No delay for small messages, and a dead peer is noticed within about 15 s even when nothing is
// sent. Best effort: a socket works without.
void tune_socket(int fd);

// The address that `fd` is bound to, or its peer's.
SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

}  // namespace libddp
