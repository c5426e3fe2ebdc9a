#include "wire/dial.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "util/error.h"

namespace libddp::wire {
namespace {

[[noreturn]] void refused(int error) {
    fail(DDP_ERROR_UNAVAILABLE, std::generic_category().message(error));
}

}  // namespace

Dial::Dial(const SocketAddress& address, std::string identity, const Key& key,
           Protection protection)
    : identity_(std::move(identity)),
      key_(key),
      protection_(protection),
      socket_(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    if (!socket_) cannot_start("a connection", errno, DDP_ERROR_UNAVAILABLE);
    tune_socket(socket_.get());
    if (connect(socket_.get(), address.get(), address.size) != 0 && errno != EINPROGRESS &&
        errno != EINTR)
        refused(errno);
}

std::unique_ptr<Channel> Dial::advance() {
    if (!handshake_) {
        if (!connected()) return nullptr;
        handshake_ = Handshake::client(std::move(socket_), identity_, key_, protection_);
    }
    wants_ = handshake_->advance();
    return wants_ == Handshake::Wants::kNothing ? handshake_->take_channel() : nullptr;
}

bool Dial::connected() const {
    pollfd entry = waits_for();
    if (poll(&entry, 1, 0) <= 0) return false;  // a signal may come
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) refused(error);
    // Without a listener, a local port of the ephemeral range can connect to itself.
    const SocketAddress self = local_address(socket_.get()), peer = peer_address(socket_.get());
    if (self.port() == peer.port() && self.host() == peer.host()) refused(ECONNREFUSED);
    return true;
}

pollfd Dial::waits_for() const {
    if (!handshake_) return {socket_.get(), POLLOUT, 0};
    return {handshake_->fd(),
            static_cast<short>(wants_ == Handshake::Wants::kRead ? POLLIN : POLLOUT), 0};
}

std::chrono::milliseconds Pauses::next() {
    if (!random_) random_.emplace(std::random_device{}());
    const std::int64_t about = std::exchange(pause_, std::min(pause_ * 3 / 2, kLongest)).count();
    return std::chrono::milliseconds(
        std::uniform_int_distribution<std::int64_t>(about / 2, about * 3 / 2)(*random_));
}

}  // namespace libddp::wire
