#include "rendezvous/tcp_dial.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "rendezvous/outbox.h"
#include "rendezvous/uri.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "wire/crypto.h"
#include "wire/dial.h"
#include "wire/sockets.h"

namespace libddp {
namespace {

constexpr std::int64_t kSilenceMs = 10'000;

std::string reason(int error) {
    return std::generic_category().message(error);
}

// False: the deadline passed.
bool wait_for(int fd, short events, const Deadline& deadline) {
    while (true) {
        pollfd entry{fd, events, 0};
        const std::int64_t longest = interrupt::possible() ? interrupt::kSlice.count() : 60'000;
        int ready = poll(
            &entry, 1, static_cast<int>(std::min<std::int64_t>(deadline.remaining_ms(), longest)));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) fail(DDP_ERROR_IO, "poll: ", reason(errno));
        if (deadline.expired()) return false;
        if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "interrupted");
    }
}

// For handshake and channel alike.
void wait_for_server(int fd, short events, const Deadline& deadline) {
    if (!wait_for(fd, events, deadline))
        fail(DDP_ERROR_UNAVAILABLE,
             "something accepts connections there, but does not answer like a libddp store");
}

std::string receive(wire::Channel& channel, std::size_t size, const Deadline& deadline) {
    std::string bytes(size, '\0');
    for (std::size_t got = 0; got < size;) {
        iovec piece{bytes.data() + got, size - got};
        const std::size_t count = channel.receive(&piece, 1);
        if (count == 0) wait_for_server(channel.fd(), POLLIN, deadline);
        got += count;
    }
    return bytes;
}

// Failures that another attempt cannot mend.
struct Final {
    ddp_status code;
    std::string message;
};

std::unique_ptr<wire::Channel> dial(const SocketAddress& address, const wire::Key& key,
                                    const Deadline& deadline) {
    wire::Dial dial(address, store_identity(), key, wire::Protection::kEncrypted);
    std::unique_ptr<wire::Channel> channel;
    try {
        while (!(channel = dial.advance())) {
            const pollfd next = dial.waits_for();
            if (dial.accepted())
                wait_for_server(next.fd, next.events, deadline);
            else if (!wait_for(next.fd, next.events, deadline))
                fail(DDP_ERROR_TIMEOUT, "no answer from ", address.host());
        }
    } catch (const wire::NotLibddp&) {
        throw Final{DDP_ERROR_UNAVAILABLE,
                    "what listens there is not a libddp store; check host and port"};
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_PERMISSION_DENIED) throw;
        throw Final{
            DDP_ERROR_PERMISSION_DENIED,
            str("the server has another job secret. Either it belongs to another job, so that this "
                "one needs a port of its own (MASTER_PORT), or the ranks of this job have "
                "different secrets: set the same DDP_SECRET or DDP_SECRET_FILE for every rank. "
                "Without one, a process has the secret of its user and of its launcher's job (",
                error.what(), ")")};
    }
    const std::uint32_t version = decode_version(receive(*channel, kVersionSize, deadline));
    if (version != kProtocolVersion)
        throw Final{DDP_ERROR_UNSUPPORTED, str("the server speaks version ", version,
                                               " of the store protocol and this library version ",
                                               kProtocolVersion, "; use one libddp for all ranks")};
    return channel;
}

std::unique_ptr<wire::Channel> attempt(const std::string& host, int port, const wire::Key& key,
                                       const Deadline& deadline) {
    ErrorInfo last;
    for (const auto& address : resolve(host, port, deadline)) {
        try {
            return dial(address, key,
                        Deadline::after_ms(
                            std::min(deadline.remaining_ms(), wire::Dial::kLongest.count())));
        } catch (const Error& error) {
            last = error.info();
            if (last.code == DDP_ERROR_INTERRUPTED) break;
            if (last.code == DDP_ERROR_LIMIT) throw Final{last.code, last.message};
        }
    }
    throw Error(last);
}

[[noreturn]] void cannot_be_used(const std::string& name, const Final& failure) {
    fail(failure.code, "the store at ", name, " cannot be used: ", failure.message);
}

[[noreturn]] void interrupted(const std::string& name) {
    fail(DDP_ERROR_INTERRUPTED, "a wait for the store at ", name,
         " was interrupted before there was a connection");
}

void send_all(wire::Channel& channel, std::string bytes, const std::string& name,
              const Deadline& deadline) {
    Outbox outbox;
    outbox.add(std::move(bytes));
    while (!outbox.send(channel))
        if (!wait_for(channel.fd(), POLLOUT, deadline))
            fail(DDP_ERROR_TIMEOUT, "the store at ", name, " takes nothing");
}

}  // namespace

std::unique_ptr<wire::Channel> connect_once(const std::string& host, int port,
                                            const std::string& secret, const Deadline& deadline) {
    try {
        return attempt(host, port, wire::derive_key(secret, kStoreKey), deadline);
    } catch (const Final& failure) {
        cannot_be_used(tcp_uri(host, port), failure);
    }
}

Outcome ask_once(const std::string& host, int port, const std::string& secret,
                 const Request& request, const Deadline& deadline) {
    const auto channel = connect_once(host, port, secret, deadline);
    const std::string name = tcp_uri(host, port);
    send_all(*channel, encode_request(1, request), name, deadline);
    FrameReader frames;
    std::array<char, 4096> buffer;
    for (;;) {
        if (const auto frame = frames.next()) return decode_reply(*frame);
        iovec piece{buffer.data(), buffer.size()};
        if (const std::size_t count = channel->receive(&piece, 1); count > 0)
            frames.feed({buffer.data(), count});
        else if (!wait_for(channel->fd(), POLLIN, deadline))
            fail(DDP_ERROR_TIMEOUT, "the store at ", name, " does not answer");
    }
}

std::unique_ptr<wire::Channel> connect_to_server(const std::string& host, int port,
                                                 const std::string& secret,
                                                 const Deadline& deadline) {
    const wire::Key key = wire::derive_key(secret, kStoreKey);
    const std::string name = tcp_uri(host, port);
    const auto started = Deadline::Clock::now();
    auto waited_ms = [&] {
        return std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() -
                                                                     started)
            .count();
    };
    wire::Pauses pauses;
    bool told = false;
    while (true) {
        ErrorInfo last;
        try {
            return attempt(host, port, key, deadline);
        } catch (const Final& failure) {
            cannot_be_used(name, failure);
        } catch (const Error& error) {
            last = error.info();
        }
        if (last.code == DDP_ERROR_INTERRUPTED) interrupted(name);
        if (last.code == DDP_ERROR_LIMIT) cannot_be_used(name, {last.code, last.message});
        if (deadline.expired())
            fail(last.code == DDP_ERROR_TIMEOUT ? DDP_ERROR_TIMEOUT : DDP_ERROR_UNAVAILABLE,
                 "the store at ", name, " was not reached within ", waited_ms(),
                 " ms: ", last.message,
                 ". Check that the process that hosts it (rank 0 or the launcher) runs, that host "
                 "and port are right, and that no firewall is between");
        if (!told && waited_ms() > kSilenceMs) {
            told = true;
            log(LogLevel::kWarn, "still trying to reach the store at ", name, ": ", last.message);
        }
        if (!interrupt::sleep(pauses.next(), deadline)) interrupted(name);
    }
}

}  // namespace libddp
