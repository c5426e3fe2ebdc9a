#include "wire/gate.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <system_error>
#include <utility>

#include "util/deadline.h"
#include "util/error.h"
#include "util/log.h"
#include "wire/crypto.h"
#include "wire/sockets.h"

namespace libddp::wire {
namespace {

constexpr int kBacklog = 4096;
constexpr std::size_t kMostStrangers = 256;
// An honest peer proves itself in milliseconds. One that is stopped meanwhile, or cut off, tries again.
constexpr auto kHandshakeBound = std::chrono::seconds(10);
constexpr int kAcceptsAtOnce = 64;
constexpr auto kReportEvery = std::chrono::seconds(1);

std::string error_text(int error) {
    return std::generic_category().message(error);
}

}  // namespace

Gate::Gate(Descriptor listener, std::string name, Handshake::Lookup lookup, Protection protection, Admit admit)
    : listener_(std::move(listener)),
      name_(std::move(name)),
      lookup_(std::move(lookup)),
      protection_(protection),
      admit_(std::move(admit)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      reserve_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
    if (!epoll_ || !reserve_) cannot_start(name_, errno);
    epoll_event event{EPOLLIN, {nullptr}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0) cannot_start(name_, errno);
}

Gate::~Gate() = default;

void Gate::advance() {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    bool knocks = false;
    // Those that are ready now. A stranger that is removed meanwhile must not be touched again, so each is looked up.
    for (int i = 0; i < count; ++i) {
        Stranger* const ready = static_cast<Stranger*>(events[static_cast<std::size_t>(i)].data.ptr);
        if (!ready) {
            knocks = true;
            continue;
        }
        const auto found = std::find_if(strangers_.begin(), strangers_.end(), [&](auto& s) { return &s == ready; });
        if (found != strangers_.end()) go_on(found);
    }
    if (knocks) accept_some();
    // At once: this thread may outlive the cryptographic library's own clean-up when the process exits.
    if (count > 0) release_thread_state();
    const auto now = Clock::now();
    while (!strangers_.empty() && now - strangers_.front().came > kHandshakeBound)
        refuse(strangers_.begin(), "it did not finish the handshake in time");
}

void Gate::accept_some() {
    for (int i = 0; i < kAcceptsAtOnce && accept_one(); ++i) {
    }
}

bool Gate::accept_one() {
    Descriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
        const int error = errno;
        if (lacks_descriptors(error) && !strangers_.empty()) {
            refuse(strangers_.begin(), "there are no descriptors left");
            return true;
        }
        if (lacks_descriptors(error)) {
            // Otherwise the listening socket would stay readable, and this thread would never sleep.
            reserve_.reset();
            Descriptor refused(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            refused.reset();
            reserve_.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
            report(str("a connection was refused: ", error_text(error), kRaiseOpenFiles));
        }
        return false;
    }
    tune_socket(fd.get());
    const SocketAddress peer = peer_address(fd.get());
    make_room(peer.host());
    Stranger& stranger = strangers_.emplace_back();
    stranger.host = peer.host();
    stranger.address = str(stranger.host, ":", peer.port());
    stranger.came = Clock::now();
    stranger.events = EPOLLIN;
    const Position position = std::prev(strangers_.end());
    try {
        stranger.handshake = Handshake::server(std::move(fd), lookup_, protection_);
    } catch (const std::exception& error) {
        report(str(stranger.address, " was refused: ", error.what()));
        strangers_.erase(position);
        return true;
    }
    epoll_event event{EPOLLIN, {&stranger}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stranger.handshake->fd(), &event) != 0)
        strangers_.erase(position);
    else
        go_on(position);
    return true;
}

// The oldest of the address that has most, when others are there too: one address alone cannot take all places.
void Gate::make_room(const std::string& host) {
    if (strangers_.size() < kMostStrangers) return;
    std::map<std::string_view, std::size_t> counts;
    for (const Stranger& stranger : strangers_) ++counts[stranger.host];
    ++counts[host];
    const auto most = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto oldest =
        std::find_if(strangers_.begin(), strangers_.end(), [&](const Stranger& s) { return s.host == most->first; });
    refuse(oldest != strangers_.end() ? oldest : strangers_.begin(), "too many others came");
}

void Gate::go_on(Position stranger) {
    Guest guest;
    try {
        const auto wants = stranger->handshake->advance();
        if (wants != Handshake::Wants::kNothing) return watch(*stranger, wants);
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger->handshake->fd(), nullptr);
        guest = {stranger->handshake->identity(), stranger->address, stranger->handshake->take_channel()};
    } catch (const std::exception& error) {
        return refuse(stranger, error.what());
    }
    strangers_.erase(stranger);
    admit_(std::move(guest));
}

void Gate::watch(Stranger& stranger, Handshake::Wants wants) {
    const std::uint32_t events = wants == Handshake::Wants::kRead ? EPOLLIN : EPOLLOUT;
    if (events == stranger.events) return;
    epoll_event event{events, {&stranger}};
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, stranger.handshake->fd(), &event);
    stranger.events = events;
}

void Gate::refuse(Position stranger, const std::string& why) {
    report(str(stranger->address, " was refused: ", why));
    strangers_.erase(stranger);  // closing takes its descriptor out of epoll
}

// An attack must not fill the log.
void Gate::report(const std::string& line) {
    const auto now = Clock::now();
    if (now - reported_ < kReportEvery) {
        ++unreported_;
        return;
    }
    reported_ = now;
    const int more = std::exchange(unreported_, 0);
    log(LogLevel::kWarn, name_, ": ", line, more > 0 ? str(" (and ", more, " more since the last such line)") : "");
}

Descriptor listen_on(const std::string& address, int port) {
    const SocketAddress wanted = resolve(address, port, Deadline::after_ms(0)).front();
    Descriptor fd(socket(wanted.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) cannot_start(str("listening on ", address), errno);
    if (bind(fd.get(), wanted.get(), wanted.size) == 0 && listen(fd.get(), kBacklog) == 0) return fd;
    const int error = errno;
    const ddp_status code = error == EADDRINUSE                 ? DDP_ERROR_ALREADY_EXISTS
                            : error == EACCES || error == EPERM ? DDP_ERROR_PERMISSION_DENIED
                            : error == EADDRNOTAVAIL            ? DDP_ERROR_INVALID_ARGUMENT
                                                                : DDP_ERROR_IO;
    fail(code, "cannot listen on ", address, " port ", port, ": ", error_text(error));
}

}  // namespace libddp::wire
