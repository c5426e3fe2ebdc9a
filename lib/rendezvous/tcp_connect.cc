#include "rendezvous/tcp_connect.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "rendezvous/auth.h"
#include "rendezvous/sockets.h"
#include "rendezvous/uri.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"

namespace libddp {
namespace {

// One attempt may take this long before the next begins: a lost SYN must not cost the whole deadline.
constexpr std::int64_t kAttemptMs = 10'000;
constexpr std::int64_t kFirstPauseMs = 20;
constexpr std::int64_t kLongestPauseMs = 500;
constexpr std::int64_t kSilenceMs = 10'000;

std::string reason(int error) {
    return std::generic_category().message(error);
}

// False: the deadline passed.
bool wait_for(int fd, short events, const Deadline& deadline) {
    while (true) {
        pollfd entry{fd, events, 0};
        const std::int64_t longest = interrupt::possible() ? interrupt::kSlice.count() : 60'000;
        int ready = poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(deadline.remaining_ms(), longest)));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) fail(DDP_ERROR_IO, "poll: ", reason(errno));
        if (deadline.expired()) return false;
        if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "interrupted");
    }
}

// At most until the deadline. False: the program wants it to end.
bool sleep_for(std::int64_t milliseconds, const Deadline& deadline) {
    const auto end = Deadline::after_ms(std::min(milliseconds, deadline.remaining_ms()));
    while (!end.expired()) {
        if (interrupt::wanted()) return false;
        std::this_thread::sleep_until(interrupt::next_look(end));
    }
    return true;
}

void connect_socket(int fd, const SocketAddress& address, const Deadline& deadline) {
    if (connect(fd, address.get(), address.size) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) fail(DDP_ERROR_UNAVAILABLE, reason(errno));
        if (!wait_for(fd, POLLOUT, deadline)) fail(DDP_ERROR_TIMEOUT, "no answer from ", address.host());
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) fail(DDP_ERROR_UNAVAILABLE, reason(error));
    }
    // Without a listener, a local port of the ephemeral range can connect to itself.
    SocketAddress self = local_address(fd);
    SocketAddress peer = peer_address(fd);
    if (self.port() == peer.port() && self.host() == peer.host()) fail(DDP_ERROR_UNAVAILABLE, reason(ECONNREFUSED));
}

void send_all(int fd, std::string_view bytes, const Deadline& deadline) {
    while (!bytes.empty()) {
        ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes.remove_prefix(static_cast<std::size_t>(sent));
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_for(fd, POLLOUT, deadline)) fail(DDP_ERROR_UNAVAILABLE, "the server takes no data");
        } else if (errno != EINTR) {
            fail(DDP_ERROR_UNAVAILABLE, "the connection broke during the handshake: ", reason(errno));
        }
    }
}

std::string receive(int fd, std::size_t size, const Deadline& deadline) {
    std::string bytes(size, '\0');
    std::size_t got = 0;
    while (got < size) {
        ssize_t count = recv(fd, bytes.data() + got, size - got, 0);
        if (count > 0) {
            got += static_cast<std::size_t>(count);
        } else if (count == 0) {
            fail(DDP_ERROR_UNAVAILABLE, "the server closed the connection during the handshake");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_for(fd, POLLIN, deadline))
                fail(DDP_ERROR_UNAVAILABLE,
                     "something accepts connections there, but does not answer like a libddp store");
        } else if (errno != EINTR) {
            fail(DDP_ERROR_UNAVAILABLE, "the connection broke during the handshake: ", reason(errno));
        }
    }
    return bytes;
}

// Failures that another attempt cannot mend.
struct Final {
    ddp_status code;
    std::string message;
};

void shake_hands(int fd, const std::string& secret, const Deadline& deadline) {
    std::string nonce = make_nonce();
    send_all(fd, encode_hello(Role::kClient, nonce), deadline);
    Hello hello = decode_hello(Role::kServer, receive(fd, kHelloSize, deadline));
    if (!hello.known)
        throw Final{DDP_ERROR_UNAVAILABLE, "what listens there is not a libddp store; check host and port"};
    if (hello.version != kProtocolVersion)
        throw Final{DDP_ERROR_UNSUPPORTED,
                    str("the server speaks version ", hello.version, " of the store protocol and this ",
                        "library version ", kProtocolVersion, "; use one libddp for all ranks")};
    send_all(fd, make_proof(Role::kClient, secret, nonce, hello.nonce), deadline);
    std::string verdict = receive(fd, kVerdictSize, deadline);
    std::string expected = make_proof(Role::kServer, secret, nonce, hello.nonce);
    if (!is_accepted(verdict) || !same_proof(std::string_view(verdict).substr(1), expected))
        throw Final{DDP_ERROR_PERMISSION_DENIED,
                    "the server has another job secret; set the same DDP_SECRET for every rank"};
}

int attempt(const std::string& host, int port, const std::string& secret, const Deadline& deadline) {
    ErrorInfo last;
    for (const auto& address : resolve(host, port, deadline)) {
        Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!socket) {
            if (lacks_descriptors(errno)) throw Final{DDP_ERROR_LIMIT, reason(errno) + kRaiseOpenFiles};
            last = {DDP_ERROR_UNAVAILABLE, reason(errno)};
            continue;
        }
        try {
            auto bound = Deadline::after_ms(std::min(deadline.remaining_ms(), kAttemptMs));
            connect_socket(socket.get(), address, bound);
            tune_socket(socket.get());
            shake_hands(socket.get(), secret, bound);
            return socket.release();
        } catch (const Error& error) {
            last = error.info();
            if (last.code == DDP_ERROR_INTERRUPTED) break;
        }
    }
    throw Error(last);
}

[[noreturn]] void cannot_be_used(const std::string& name, const Final& failure) {
    fail(failure.code, "the store at ", name, " cannot be used: ", failure.message);
}

[[noreturn]] void interrupted(const std::string& name) {
    fail(DDP_ERROR_INTERRUPTED, "a wait for the store at ", name, " was interrupted before there was a connection");
}

}  // namespace

int connect_once(const std::string& host, int port, const std::string& secret, const Deadline& deadline) {
    try {
        return attempt(host, port, secret, deadline);
    } catch (const Final& failure) {
        cannot_be_used(tcp_uri(host, port), failure);
    }
}

int connect_to_server(const std::string& host, int port, const std::string& secret, const Deadline& deadline) {
    const std::string name = tcp_uri(host, port);
    const auto started = Deadline::Clock::now();
    auto waited_ms = [&] {
        return std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - started).count();
    };
    std::minstd_rand random(std::random_device{}());
    std::int64_t pause = kFirstPauseMs;
    bool told = false;
    while (true) {
        ErrorInfo last;
        try {
            return attempt(host, port, secret, deadline);
        } catch (const Final& failure) {
            cannot_be_used(name, failure);
        } catch (const Error& error) {
            last = error.info();
        }
        if (last.code == DDP_ERROR_INTERRUPTED) interrupted(name);
        if (last.code == DDP_ERROR_LIMIT) cannot_be_used(name, {last.code, last.message});
        if (deadline.expired())
            fail(last.code == DDP_ERROR_TIMEOUT ? DDP_ERROR_TIMEOUT : DDP_ERROR_UNAVAILABLE, "the store at ", name,
                 " was not reached within ", waited_ms(), " ms: ", last.message,
                 ". Check that the process that hosts it (rank 0 or the launcher) runs, that host and port are right, "
                 "and that no"
                 " firewall is between");
        if (!told && waited_ms() > kSilenceMs) {
            told = true;
            log(LogLevel::kWarn, "still trying to reach the store at ", name, ": ", last.message);
        }
        // Jitter spreads the ranks of a large job, which all start to knock at the same moment.
        std::int64_t jittered = std::uniform_int_distribution<std::int64_t>(pause / 2, pause * 3 / 2)(random);
        if (!sleep_for(jittered, deadline)) interrupted(name);
        pause = std::min(pause * 3 / 2, kLongestPauseMs);
    }
}

}  // namespace libddp
