#include "backends/tcp/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "util/error.h"
#include "util/mutex.h"
#include "util/process.h"
#include "util/quiet_thread.h"
#include "wire/sockets.h"

namespace libddp::tcp {
namespace {

using Clock = wire::Gate::Clock;

// How long a connection waits for the peer's end to close, and how long the end of the process's
// last group may wait for all of them.
constexpr auto kClosing = std::chrono::seconds(2);
constexpr auto kLastClosing = std::chrono::milliseconds(100);

struct Registry {
    Mutex mutex;
    std::map<std::pair<std::string, wire::Protection>, std::weak_ptr<Listener>> listeners
        DDP_GUARDED_BY(mutex);
};

Registry& registry() {
    static OnePerProcess<Registry> registries;
    return registries.get();
}

}  // namespace

std::shared_ptr<Listener> Listener::at(const std::string& address, wire::Protection protection) {
    Registry& r = registry();
    const Lock lock(r.mutex);
    auto& known = r.listeners[{address, protection}];
    auto listener = known.lock();
    if (!listener) known = listener = std::make_shared<Listener>(address, protection);
    return listener;
}

Listener::Listener(const std::string& address, wire::Protection protection)
    : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) cannot_start("the listener of backend tcp", errno);
    Descriptor socket = wire::listen_on(address, 0);
    port_ = local_address(socket.get()).port();
    gate_ = std::make_unique<wire::Gate>(
        std::move(socket), "backend tcp",
        [this](std::string_view identity) -> std::optional<wire::Key> {
            const Lock lock(mutex_);
            Expecting* expecting = find(identity);
            return expecting ? expecting->key_of(identity) : std::nullopt;
        },
        protection,
        [this](wire::Gate::Guest guest) {
            const Lock lock(mutex_);
            if (Expecting* expecting = find(guest.identity)) expecting->admit(std::move(guest));
        });
    thread_ = quiet_thread([this] { persist("the listener of backend tcp", [this] { watch(); }); });
}

Listener::~Listener() {
    {
        const Lock lock(mutex_);
        stop_ = true;
    }
    wake();
    thread_.join();
}

void Listener::wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

Expecting* Listener::find(std::string_view identity) {
    auto after = expecting_.upper_bound(identity);
    if (after == expecting_.begin()) return nullptr;
    const auto& [prefix, expecting] = *--after;
    return identity.starts_with(prefix) ? expecting : nullptr;
}

void Listener::add(const std::string& prefix, Expecting* expecting) {
    const Lock lock(mutex_);
    expecting_.emplace(prefix, expecting);
}

void Listener::remove(const std::string& prefix) {
    const Lock lock(mutex_);
    expecting_.erase(prefix);
}

void Listener::close_later(std::unique_ptr<wire::Channel> channel) {
    shutdown(channel->fd(), SHUT_WR);
    {
        const Lock lock(mutex_);
        closing_.push_back({std::move(channel), Clock::now() + kClosing});
    }
    wake();
}

// The thread. Only it takes connections out of closing_.
void Listener::watch() {
    std::optional<Clock::time_point> end;
    std::vector<pollfd> watched;
    std::vector<Closing*> closing;
    for (;;) {
        watched = {{wake_.get(), POLLIN, 0}, {gate_->fd(), POLLIN, 0}};
        closing.clear();
        {
            const Lock lock(mutex_);
            const auto now = Clock::now();
            if (stop_ && !end) end = now + kLastClosing;
            closing_.remove_if(
                [&](const Closing& c) { return c.until <= now || (end && *end <= now); });
            if (stop_ && closing_.empty()) return;
            for (Closing& c : closing_) {
                watched.push_back({c.channel->fd(), POLLIN, 0});
                closing.push_back(&c);
            }
        }
        const int wait_ms = end ? 10
                            : gate_->pending() || !closing.empty()
                                ? static_cast<int>(wire::Gate::kLookMs) / 5
                                : -1;
        poll(watched.data(), watched.size(), wait_ms);
        std::array<char, 8> count;
        [[maybe_unused]] const auto ignored = read(wake_.get(), count.data(), count.size());
        gate_->advance();
        for (std::size_t i = 0; i < closing.size(); ++i)
            if (watched[i + 2].revents != 0) drain(*closing[i]);
    }
}

void Listener::drain(Closing& closing) {
    std::array<char, 4096> unread;
    constexpr int kMost = 256;  // others want their turn
    for (int i = 0; i < kMost; ++i) {
        const ssize_t count =
            recv(closing.channel->fd(), unread.data(), unread.size(), MSG_DONTWAIT);
        if (count > 0) continue;
        const bool more = count < 0 && (errno == EAGAIN || errno == EINTR);
        if (!more) closing.until = Clock::now();
        return;
    }
}

}  // namespace libddp::tcp
