// One connection whose two ends have proved to each other that they know the same key.
//
// Both ends run a TLS 1.3 handshake with an external pre-shared key (RFC 8446, 2.2) and an
// elliptic-curve exchange, so that a key that leaks later does not open what was recorded before.
// The client names what it wants in an identity, a text that the handshake authenticates. The
// server looks up the key for it. Nothing of what a stranger sends is read beyond the handshake
// itself.
//
// The protection decides what follows: encrypted frames, whose keys the handshake exports, or plain
// bytes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "util/descriptors.h"
#include "util/error.h"
#include "wire/crypto.h"
#include "wire/seen_hellos.h"

namespace libddp::wire {

// After the handshake. Both ends must use the same: it is part of what the handshake authenticates.
// Tables have names in this order.
enum class Protection {
    kEncrypted,  // and authenticated
    kPlain,      // neither: only the peer was proved
};

// A connection that passed its handshake. One thread at a time uses it. Never blocks.
class Channel {
public:
    virtual ~Channel() = default;
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    int fd() const { return fd_.get(); }

    // Takes bytes from the front of `parts` and returns how many it took; their memory is then free
    // again. 0: none now, try again when fd() is writable. Throws Error UNAVAILABLE when the
    // connection is broken.
    virtual std::size_t send(const iovec* parts, int count) = 0;
    // Passes on to the kernel what send() took and still holds. True: nothing is left.
    virtual bool flush() = 0;
    // Fills `parts` from the front and returns how many bytes came. 0: none now; try again when
    // fd() is readable. It looks at what it holds itself before it asks the kernel, so call it
    // until it returns 0 before you wait for fd(). Throws Error UNAVAILABLE when the connection has
    // ended (the text says so) or is broken, and PERMISSION_DENIED when bytes were changed on the
    // way.
    virtual std::size_t receive(const iovec* parts, int count) = 0;

protected:
    explicit Channel(Descriptor fd) : fd_(std::move(fd)) {}
    const Descriptor fd_;
};

// Thrown by a handshake, with UNAVAILABLE, when what is at the other end is not libddp.
class NotLibddp final : public Error {
public:
    using Error::Error;
};

// The handshake of one connected, non-blocking socket. One thread at a time uses it. Never blocks.
class Handshake {
public:
    // Which key an identity has; nullopt: none, and the connection is refused. Called during
    // advance().
    using Lookup = std::function<std::optional<Key>(std::string_view identity)>;

    // identity: at most 128 bytes without NUL.
    static std::unique_ptr<Handshake> client(Descriptor fd, std::string identity, const Key& key,
                                             Protection protection);
    // seen: of this server's handshakes, and outlives this one; null refuses no recordings. A
    // recorded hello is refused before the elliptic-curve work, and gets no answer.
    static std::unique_ptr<Handshake> server(Descriptor fd, Lookup lookup, Protection protection,
                                             SeenHellos* seen = nullptr);
    virtual ~Handshake() = default;

    enum class Wants { kRead, kWrite, kNothing };
    // Goes on as far as it can. kNothing: both ends have proved themselves, also to this end; take
    // the channel. Throws Error: UNAVAILABLE (the connection broke, or what is there is not
    // libddp), PERMISSION_DENIED (the peer does not know the key).
    virtual Wants advance() = 0;
    virtual int fd() const = 0;
    // The identity that the client has sent. At a server it is empty until the client, or somebody
    // with a recording of it, has used the key.
    virtual const std::string& identity() const = 0;
    // Once, after kNothing.
    virtual std::unique_ptr<Channel> take_channel() = 0;
};

}  // namespace libddp::wire
