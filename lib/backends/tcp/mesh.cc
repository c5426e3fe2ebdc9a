#include "backends/tcp/mesh.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>

#include "util/spin.h"
#include "wire/sockets.h"

namespace libddp::tcp {
namespace {

using Clock = Deadline::Clock;

// Waking a sleeper takes longer than most short messages do.
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::milliseconds kLook{50};
constexpr unsigned kMovesBetweenChecks = 64;

// The kernel repeats what is lost for as long as the group waits. A link that comes back in time
// loses nothing.
void outlast_flaps(int fd, std::int64_t timeout_ms) {
    const int bound = static_cast<int>(std::min<std::int64_t>(timeout_ms, INT32_MAX));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &bound, sizeof bound);
}

}  // namespace

Mesh::Mesh(const ddp_backend_host& host, const Settings& settings, const backend::Failure& failure)
    : host_(host),
      settings_(settings),
      failure_(failure),
      by_peer_(static_cast<std::size_t>(host.world_size)) {
    Connections connections = join(host, settings, Deadline::after_ms(host.timeout_ms));
    listener_ = std::move(connections.listener);
    std::size_t peers = 0;
    for (std::size_t peer = 0; peer < by_peer_.size(); ++peer) {
        if (!connections.channels[peer].empty()) ++peers;
        for (auto& channel : connections.channels[peer]) {
            outlast_flaps(channel->fd(), host.timeout_ms);
            const std::size_t number = by_peer_[peer].size();
            lanes_.push_back(
                std::make_unique<Lane>(static_cast<int>(peer), number, std::move(channel)));
            by_peer_[peer].push_back(lanes_.back().get());
        }
    }
    full_ = peers + 1 == by_peer_.size();
    delivery_ = Delivery::of(lanes_);
}

Mesh::~Mesh() = default;

bool Mesh::move_all() {
    bool moved = false;
    for (const auto& lane : lanes_)
        if (lane->sending() || lane->receiving()) moved = lane->move() || moved;
    return moved;
}

bool Mesh::all_sent() const {
    return std::none_of(lanes_.begin(), lanes_.end(),
                        [](const auto& lane) { return lane->sending(); });
}

std::vector<int> Mesh::peers(bool (Lane::*busy)() const) const {
    std::set<int> ranks;
    for (const auto& lane : lanes_)
        if (((*lane).*busy)()) ranks.insert(lane->peer());
    return {ranks.begin(), ranks.end()};
}

ErrorInfo Mesh::timed_out() const {
    const auto awaited = peers(&Lane::receiving), full = peers(&Lane::sending);
    const auto& ranks = awaited.empty() ? full : awaited;
    if (ranks.empty())
        return {DDP_ERROR_TIMEOUT, "the collective did not finish before its timeout"};
    std::string names;
    for (const int rank : ranks) names += str(names.empty() ? "" : ", ", rank);
    // A round robin group may use several networks.
    const int fd = by_peer_[static_cast<std::size_t>(ranks.front())].front()->fd();
    const std::string way = str("; the connection with rank ", ranks.front(), " is from ",
                                local_address(fd).host(), " to ", peer_address(fd).host());
    return {DDP_ERROR_TIMEOUT,
            awaited.empty() ? str("rank ", names,
                                  " did not take all that was sent to it before the timeout", way)
                            : str("no sign of rank ", names, " before the timeout", way),
            ranks.front()};
}

void Mesh::forget() {
    for (const auto& lane : lanes_) lane->forget();
}

void Mesh::shut_down() {
    for (const auto& lane : lanes_) shutdown(lane->fd(), SHUT_RDWR);
}

void Mesh::say_goodbye() {
    for (const auto& lanes : by_peer_) {
        if (lanes.empty() || lanes.front()->cut()) continue;
        try {
            lanes.front()->send(MessageType::kGoodbye, operation_, nullptr, 0);
            lanes.front()->move();
        } catch (const Error&) {
            // It has left before.
        }
    }
}

void Mesh::close_later() {
    for (const auto& lane : lanes_) listener_->close_later(lane->take_channel());
}

void Mesh::Patience::after(bool moved) {
    if (moved) {
        idle_since_ = {};
        // A peer that sends a little again and again must not outlast the deadline.
        if (++moves_ % kMovesBetweenChecks == 0) check();
        return;
    }
    const auto now = Clock::now();
    if (idle_since_ == Clock::time_point{}) idle_since_ = now;
    if (now - idle_since_ < kSpin) return pause_processor();
    check();
    sleep();
}

void Mesh::Patience::check() {
    mesh_.failure_.check();
    mesh_.look_at_delivery();
    if (mesh_.host_.interrupted && mesh_.host_.interrupted(mesh_.host_.handle) != 0)
        fail(DDP_ERROR_INTERRUPTED, "the collective was interrupted");
    if (deadline_.expired()) throw Error(mesh_.timed_out());
}

void Mesh::Patience::sleep() {
    // Also of peers from which nothing is expected: one that breaks ends this rank's wait for
    // others.
    std::vector<pollfd> entries;
    std::vector<Lane*> entered;
    for (const auto& lane : mesh_.lanes_) {
        if (lane->ended()) continue;
        int events = POLLRDHUP;
        if (lane->sending()) events |= POLLOUT;
        if (lane->receiving()) events |= POLLIN;
        entries.push_back({lane->fd(), static_cast<short>(events), 0});
        entered.push_back(lane.get());
    }
    const auto until = std::min(deadline_.at(), Clock::now() + kLook);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (poll(entries.data(), entries.size(), static_cast<int>(std::max<std::int64_t>(0, left))) <=
        0)
        return;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        Lane& lane = *entered[i];
        const bool closed = (entries[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
        if (closed && !lane.receiving() && !lane.sending()) lane.peer_closed();
    }
}

}  // namespace libddp::tcp
