// Two connected sockets, of which the target writes to one what a peer may send.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "fuzz/target.h"
#include "util/descriptors.h"

namespace fuzz {

class Sockets {
public:
    Sockets() {
        int ends[2] = {-1, -1};
        check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
              "there are no sockets");
        mine.reset(ends[0]);
        peer.reset(ends[1]);
    }

    // False: the kernel has not taken all of them.
    bool send(std::string_view bytes) const {
        return ::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(bytes.size());
    }
    // The bytes that came to the peer.
    std::string receive() const {
        std::string bytes(1 << 16, '\0');
        const ssize_t size = recv(peer.get(), bytes.data(), bytes.size(), 0);
        bytes.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
        return bytes;
    }
    void end() { peer.reset(); }

    libddp::Descriptor mine, peer;
};

}  // namespace fuzz
