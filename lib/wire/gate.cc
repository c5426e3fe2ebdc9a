#include "wire/gate.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "util/deadline.h"
#include "util/error.h"
#include "util/log.h"
#include "wire/crypto.h"
#include "wire/sockets.h"

namespace libddp::wire {
namespace {

// The time of a handshake while so many are under way that nobody else is let in.
constexpr auto kBusyBound = std::chrono::seconds(1);
// The same of one that belongs to the network with the most of them, if that has more than its
// share. Ranks on a busy host need some tenths of a second when all come at once.
constexpr auto kCrowdBound = std::chrono::milliseconds(500);
// How long each network has only its share then.
constexpr auto kCrowded = std::chrono::seconds(10);
// Where the system lacks something.
constexpr auto kRest = std::chrono::milliseconds(500);
constexpr int kAcceptsAtOnce = 64;
constexpr auto kReportEvery = std::chrono::seconds(10);
// The number of the listening socket in epoll; strangers have numbers from 1 on.
constexpr std::uint64_t kListener = 0;

std::string error_text(int error) {
    return std::generic_category().message(error);
}

Descriptor reserve() {
    return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// EPOLL_CTL_...
bool tell(int epoll, int operation, int fd, std::uint32_t events, std::uint64_t id) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    return epoll_ctl(epoll, operation, fd, &event) == 0;
}

}  // namespace

void GateLog::report(const std::string& line) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < kReportEvery) {
        ++left_out_;
        return;
    }
    last_ = now;
    const int more = std::exchange(left_out_, 0);
    log(LogLevel::kWarn, name_, ": ", line,
        more > 0 ? str(" (and ", more, " more since the last such line)") : "");
}

Gate::Gate(Descriptor listener, const std::string& name, Handshake::Lookup lookup,
           Protection protection, Admit admit, Clock::duration bound)
    : listener_(std::move(listener)),
      log_(name),
      lookup_(std::move(lookup)),
      protection_(protection),
      admit_(std::move(admit)),
      bound_(bound),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      reserve_(reserve()),
      next_id_(kListener + 1) {
    if (!epoll_ || !reserve_ ||
        !tell(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListener))
        cannot_start(name, errno);
}

Gate::~Gate() = default;

void Gate::advance() {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    bool knocks = false;
    for (int i = 0; i < count; ++i) {
        const std::uint64_t ready = events[static_cast<std::size_t>(i)].data.u64;
        knocks |= ready == kListener;
        // One that was turned away meanwhile is not there.
        if (const auto found = strangers_.find(ready); found != strangers_.end()) go_on(found);
    }
    if (knocks) accept_some();
    refuse_late_ones();
    if (!reserve_) reserve_ = reserve();
    // At once: this thread may outlive the cryptographic library's own clean-up when the process
    // exits.
    if (count > 0 && strangers_.empty()) release_thread_state();
}

void Gate::refuse_late_ones() {
    const auto now = Clock::now();
    auto later_than = [&](std::optional<std::uint64_t> id, Clock::duration bound) {
        return id && now - strangers_.at(*id).came > bound;
    };
    while (later_than(order_.oldest(), bound_))
        refuse(*order_.oldest(), "it did not finish the handshake in time");
    while (order_.busy() && later_than(order_.oldest_of_crowd(), kCrowdBound)) {
        crowded_until_ = now + kCrowded;
        refuse(*order_.oldest_of_crowd(),
               "it did not finish the handshake in time, and many came from its network");
    }
    while (order_.busy() && later_than(order_.oldest_promising(), kBusyBound))
        refuse(*order_.oldest_promising(),
               "it did not finish the handshake in time, and others wait");
    if (paused_ && !order_.busy() && now >= paused_until_) {
        paused_ = false;
        tell(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), EPOLLIN, kListener);
    }
}

void Gate::pause(Clock::duration at_least) {
    paused_ = true;
    paused_until_ = Clock::now() + at_least;
    tell(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), 0, kListener);
}

void Gate::accept_some() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
        // Others wait in the kernel meanwhile. When a large job begins, all of its ranks come at
        // once.
        if (order_.busy()) return pause(Clock::duration::zero());
        if (!accept_one()) return;
    }
}

// False: there is none now.
bool Gate::accept_one() {
    Descriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
        const int error = errno;
        if (error == EAGAIN || error == EWOULDBLOCK) return false;
        if (error == EINTR || error == ECONNABORTED) return true;
        if (lacks_descriptors(error)) return turn_one_away();
        log_.report(str("connections cannot be accepted for a while: ", error_text(error)));
        pause(kRest);
        return false;
    }
    tune_socket(fd.get());
    const SocketAddress peer = peer_address(fd.get());
    const std::string address = str(peer.host(), ":", peer.port());
    const std::uint64_t id = next_id_++;
    try {
        const int number = fd.get();
        Stranger stranger{Handshake::server(std::move(fd), lookup_, protection_, &seen_), address,
                          Clock::now(), EPOLLIN};
        if (!tell(epoll_.get(), EPOLL_CTL_ADD, number, EPOLLIN, id))
            fail(DDP_ERROR_LIMIT, error_text(errno));
        order_.add(id, peer);
        strangers_.emplace(id, std::move(stranger));
    } catch (const std::exception& error) {
        order_.remove(id);
        log_.report(str(address, " was refused: ", error.what()));
        return true;
    }
    if (order_.too_many()) refuse(order_.next_to_go().value_or(id), "too many others came");
    // The stranger's first bytes have usually come already.
    if (const auto found = strangers_.find(id); found != strangers_.end()) go_on(found);
    return true;
}

// Where there is no descriptor left. Otherwise the listening socket would stay readable, and this
// thread would never sleep. False: nobody waits, or this process must wait.
bool Gate::turn_one_away() {
    if (const auto id = order_.next_to_go()) {
        refuse(*id, "there are no descriptors left");
        return true;
    }
    reserve_.reset();
    Descriptor refused(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const int error = refused ? 0 : errno;
    if (refused) {
        const SocketAddress peer = peer_address(refused.get());
        log_.report(str(peer.host(), ":", peer.port(),
                        " was refused: there are no descriptors left", kRaiseOpenFiles));
    }
    refused.reset();
    reserve_ = reserve();
    // Another thread may have taken the descriptor.
    if (lacks_descriptors(error)) pause(kRest);
    return error == 0;
}

void Gate::go_on(Position at) {
    Guest guest;
    try {
        Handshake& handshake = *at->second.handshake;
        const auto wants = handshake.advance();
        if (wants != Handshake::Wants::kNothing) {
            watch(at, wants);
            if (!handshake.identity().empty()) is_promising(at->first);
            return;
        }
        tell(epoll_.get(), EPOLL_CTL_DEL, handshake.fd(), 0, 0);
        guest = {handshake.identity(), at->second.address, handshake.take_channel()};
    } catch (const std::exception& error) {
        return refuse(at->first, error.what());
    }
    forget(at);
    admit_(std::move(guest));
}

void Gate::is_promising(std::uint64_t id) {
    order_.is_promising(id);
    if (Clock::now() >= crowded_until_) return;
    while (const auto oldest = order_.oldest_of_crowd())
        refuse(*oldest, "too many others came from its network");
}

void Gate::watch(Position at, Handshake::Wants wants) {
    const std::uint32_t events = wants == Handshake::Wants::kRead ? EPOLLIN : EPOLLOUT;
    if (events == at->second.events) return;
    tell(epoll_.get(), EPOLL_CTL_MOD, at->second.handshake->fd(), events, at->first);
    at->second.events = events;
}

// Closing takes its descriptor out of epoll.
void Gate::forget(Position at) {
    order_.remove(at->first);
    strangers_.erase(at);
}

void Gate::refuse(std::uint64_t id, const std::string& why) {
    const auto at = strangers_.find(id);
    log_.report(str(at->second.address, " was refused: ", why));
    forget(at);
}

Descriptor listen_on(const std::string& address, int port) {
    const SocketAddress wanted = resolve(address, port, Deadline::after_ms(0)).front();
    Descriptor fd = listening_socket(wanted);
    if (fd) return fd;
    const int error = errno;
    if (lacks_descriptors(error)) cannot_start(str("listening on ", address), error);
    const ddp_status code = error == EADDRINUSE                 ? DDP_ERROR_ALREADY_EXISTS
                            : error == EACCES || error == EPERM ? DDP_ERROR_PERMISSION_DENIED
                            : error == EADDRNOTAVAIL            ? DDP_ERROR_INVALID_ARGUMENT
                                                                : DDP_ERROR_IO;
    fail(code, "cannot listen on ", address, " port ", port, ": ", error_text(error));
}

}  // namespace libddp::wire
