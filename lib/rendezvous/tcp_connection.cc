#include "rendezvous/tcp_connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "util/error.h"
#include "util/log.h"

namespace libddp {
namespace {

// A request that is longer has to ask for room, once its length is known.
constexpr std::size_t kShortRequest = std::size_t{16} << 10;
// Reads of one turn, so that one client does not keep the thread from the others.
constexpr int kReadsATurn = 16;

}  // namespace

TcpConnection::TcpConnection(LoopThread& loop, std::uint64_t id, wire::Gate::Guest guest,
                             std::size_t& total, Owner& owner)
    : id_(id),
      owner_(owner),
      buffer_(loop.buffer()),
      peer_(std::move(guest.address)),
      channel_(std::move(guest.channel)),
      outbox_(&total) {
    // The last thing that can fail: from here on libuv knows the handle.
    if (int status = uv_poll_init(loop.loop(), &poll_, channel_->fd()); status != 0)
        fail(DDP_ERROR_IO, "a connection cannot be watched: ", uv_strerror(status));
    poll_.data = this;
}

void TcpConnection::begin(bool same_version) {
    // The client of another version learns ours and says what is wrong.
    if (!same_version) return finish(encode_version());
    send(encode_version());
    turn();
}

void TcpConnection::on_event(int status, int events) {
    if (closed()) return;
    if (status != 0) watched_ = 0;  // libuv has stopped watching
    try {
        if (state_ == State::kFinishing) return status == 0 ? finish_on() : close();
        // Nothing is read from this client now, so this is how its end shows.
        if (room_ == Room::kAwaited && (events & UV_DISCONNECT) != 0) return close();
        if (status == 0) outbox_.send(*channel_);
        read();
        if (status != 0) close();
    } catch (const std::exception& error) {
        if (caught().code != DDP_ERROR_UNAVAILABLE)  // that is how connections end
            log(LogLevel::kInfo, "store: a connection from ", peer_, " is closed: ", error.what());
        close();
    }
}

void TcpConnection::read() {
    for (int i = 0; i < kReadsATurn; ++i) {
        if (!drain_frames()) return;
        iovec piece{buffer_, LoopThread::kReadBuffer};
        const std::size_t count = channel_->receive(&piece, 1);
        if (count == 0) return watch();
        frames_.feed({buffer_, count});
    }
    if (drain_frames()) owner_.again(*this);
}

// False: it is not the time to read on.
bool TcpConnection::drain_frames() {
    while (state_ == State::kOpen && !closed()) {
        congested_ = congested();
        if (congested_ || room_ == Room::kAwaited) {
            watch();
            return false;
        }
        if (auto frame = frames_.next()) {
            drop_room();
            owner_.on_frame(*this, *frame);
            continue;
        }
        const std::size_t size = frames_.announced();
        if (size <= kShortRequest) return true;
        if (room_ == Room::kHeld) {
            frames_.expect_announced();
            return true;
        }
        room_ = owner_.ask_room(*this, size) ? Room::kHeld : Room::kAwaited;
    }
    return false;
}

void TcpConnection::room_given() {
    room_ = Room::kHeld;
    owner_.again(*this);
}

void TcpConnection::drop_room() {
    if (std::exchange(room_, Room::kNone) != Room::kNone) owner_.give_back_room(*this);
}

void TcpConnection::send(std::string bytes) {
    send(std::move(bytes), nullptr);
}

void TcpConnection::send(std::string header, SharedBytes rest) {
    if (closed() || state_ != State::kOpen) return;
    const bool idle = outbox_.bytes() == 0;
    outbox_.add(std::move(header));
    if (rest != nullptr) outbox_.add(std::move(rest));
    if (outbox_.bytes() > owner_.limits().hopeless) {
        log(LogLevel::kWarn, "store: a client at ", peer_,
            " that does not read its answers is disconnected");
        return close();
    }
    if (!idle) return;
    try {
        outbox_.send(*channel_);
        watch();
    } catch (const std::exception&) {
        close();
    }
}

void TcpConnection::finish(std::string last) {
    if (closed()) return;
    if (state_ != State::kOpen) return close();
    drop_room();
    outbox_.add(std::move(last));
    state_ = State::kFinishing;
    turn();
}

void TcpConnection::finish_on() {
    if (!shut_ && outbox_.send(*channel_)) {
        shut_ = true;
        shutdown(channel_->fd(), SHUT_WR);
    }
    for (int i = 0; i < kReadsATurn; ++i) {
        const ssize_t count = recv(channel_->fd(), buffer_, LoopThread::kReadBuffer, MSG_DONTWAIT);
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return close();
        if (count < 0) break;
    }
    watch();
}

void TcpConnection::close() {
    if (closed()) return;
    uv_close(reinterpret_cast<uv_handle_t*>(&poll_), [](uv_handle_t* handle) {
        auto* self = static_cast<TcpConnection*>(handle->data);
        self->owner_.on_closed(*self);
    });
    drop_room();
    outbox_.clear();
    frames_ = FrameReader();
    // The descriptor is free again when this returns.
    channel_.reset();
}

void TcpConnection::watch() {
    if (closed()) return;
    int events = 0;
    if (state_ == State::kFinishing || !(congested_ || room_ == Room::kAwaited))
        events |= UV_READABLE;
    if (!shut_ && (outbox_.bytes() > 0 || !channel_->flush())) events |= UV_WRITABLE;
    if (events == 0) events = UV_DISCONNECT;
    watch(events);
}

void TcpConnection::watch(int events) {
    if (events == watched_) return;
    watched_ = events;
    const int status = uv_poll_start(&poll_, events, [](uv_poll_t* poll, int failed, int happened) {
        static_cast<TcpConnection*>(poll->data)->on_event(failed, happened);
    });
    if (status != 0) close();
}

}  // namespace libddp
