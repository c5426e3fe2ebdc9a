#include "rendezvous/tcp_client_connection.h"

#include <new>
#include <system_error>
#include <utility>

#include "util/error.h"

namespace libddp {
namespace {

// How long close() tries to get the farewell out.
constexpr std::uint64_t kFarewellMs = 300;
// Reads of one turn of the loop, so that replies that keep coming do not hold back requests.
constexpr int kReads = 64;
// The owner gives an answer that is longer more time.
constexpr std::size_t kAnswerWithTime = std::size_t{1} << 20;

}  // namespace

TcpClientConnection::TcpClientConnection(std::unique_ptr<wire::Channel> channel, std::string name,
                                         Owner& owner)
    : name_(std::move(name)),
      owner_(owner),
      channel_(std::move(channel)),
      loop_("the store client", [this] { turn(); }) {
    loop_.start([this] {
        uv_timer_init(loop_.loop(), &farewell_);
        if (int status = uv_poll_init(loop_.loop(), &socket_, channel_->fd()); status != 0)
            fail(DDP_ERROR_IO,
                 "the store client cannot start: ", std::generic_category().message(-status));
        socket_.data = farewell_.data = this;
        watch(false);
        // Bytes that the server has sent with the end of the handshake are in the channel, not in
        // the socket.
        loop_.wake();
    });
}

void TcpClientConnection::send(std::string bytes) {
    const Lock lock(mutex_);
    unsent_ += bytes.size();
    outgoing_.push_back(std::move(bytes));
    loop_.wake();
}

void TcpClientConnection::close() {
    {
        const Lock lock(mutex_);
        closed_ = true;
    }
    loop_.stop();
}

// ---- the loop's thread

void TcpClientConnection::turn() {
    bool closed = false;
    try {
        const Lock lock(mutex_);
        closed = closed_;
        for (auto& message : outgoing_) outbox_.add(std::move(message));
        outgoing_.clear();
    } catch (const std::bad_alloc&) {
        lose(str("the connection to the store at ", name_, " was given up: out of memory"), false);
    }
    if (channel_ != nullptr) talk();
    if (closed) say_goodbye();
}

// Reads first: a server that ends says so before its end breaks a write.
void TcpClientConnection::talk() {
    try {
        const bool more = read();
        if (channel_ == nullptr) return;
        const std::size_t held = outbox_.bytes();
        const bool sent = outbox_.send(*channel_);
        unsent_ -= held - outbox_.bytes();
        watch(!sent);
        if (leaving_ && sent) return end();
        if (more && !leaving_) loop_.wake();
    } catch (const std::exception& error) {
        lose(str("the connection to the store at ", name_, " was lost: ", error.what()), false);
    }
}

// A few buffers. True: there may be more.
bool TcpClientConnection::read() {
    for (int i = 0; i < kReads; ++i) {
        iovec piece{loop_.buffer(), LoopThread::kReadBuffer};
        const std::size_t count = channel_->receive(&piece, 1);
        if (count == 0) return false;
        frames_.feed({loop_.buffer(), count});
        take_frames();
        if (channel_ == nullptr) return false;
        expect_long_answer();
    }
    return true;
}

void TcpClientConnection::watch(bool writes) {
    const int events = writes ? UV_READABLE | UV_WRITABLE : UV_READABLE;
    if (events == watched_) return;
    watched_ = events;
    const int status = uv_poll_start(&socket_, events, [](uv_poll_t* poll, int failed, int) {
        auto* self = static_cast<TcpClientConnection*>(poll->data);
        if (failed != 0) self->watched_ = 0;  // libuv has stopped watching
        if (self->channel_ != nullptr) self->talk();
    });
    if (status != 0)
        fail(DDP_ERROR_IO, "the store client cannot watch its socket: ",
             std::generic_category().message(-status));
}

void TcpClientConnection::say_goodbye() {
    if (std::exchange(leaving_, true)) return;
    if (channel_ == nullptr) return end();
    std::string bytes = encode_request(0, Request{Op::kGoodbye});
    unsent_ += bytes.size();
    outbox_.add(std::move(bytes));
    const auto late = [](uv_timer_t* timer) {
        static_cast<TcpClientConnection*>(timer->data)->end();
    };
    uv_timer_start(&farewell_, late, kFarewellMs, 0);
    talk();
}

void TcpClientConnection::end() {
    loop_.end();
    channel_.reset();
}

void TcpClientConnection::take_frames() {
    try {
        while (auto frame = frames_.next()) {
            expects_long_answer_ = false;
            if (frame->op == Op::kReply)
                owner_.on_answer(frame->id, decode_reply(*frame));
            else if (frame->op == Op::kClosing)
                return lose(str("the store at ", name_, " ended: ", decode_closing(*frame)), true);
            else
                fail(DDP_ERROR_IO, "an unknown kind of message");
        }
    } catch (const std::exception& error) {
        lose(str("the store at ", name_,
                 " sent something that is not the store protocol: ", error.what()),
             false);
    }
}

// The first bytes of a frame say how long it is.
void TcpClientConnection::expect_long_answer() {
    const std::size_t size = frames_.announced();
    if (size < kAnswerWithTime || std::exchange(expects_long_answer_, true)) return;
    frames_.expect_announced();
    owner_.on_long_answer(size);
}

void TcpClientConnection::lose(const std::string& reason, bool graceful) {
    owner_.on_lost(reason, graceful);
    outbox_.clear();
    auto* const socket = reinterpret_cast<uv_handle_t*>(&socket_);
    if (uv_is_closing(socket) == 0) uv_close(socket, nullptr);
    channel_.reset();
    if (leaving_) end();
}

}  // namespace libddp
