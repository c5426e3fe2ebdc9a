#include "rendezvous/tcp_server.h"

#include <uv.h>

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/auth.h"
#include "rendezvous/protocol.h"
#include "rendezvous/uri.h"
#include "rendezvous/uv_tools.h"
#include "rendezvous/wait_list.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/log.h"
#include "util/quiet_thread.h"
#include "wire/crypto.h"
#include "wire/sockets.h"

namespace libddp {

// The server's end of one connection: handshake, framing, back pressure. Lives on the server's loop thread.
class TcpConnection {
public:
    class Listener {
    public:
        virtual ~Listener() = default;
        // A frame of an authenticated client. Throwing Error ends the connection.
        virtual void on_frame(TcpConnection& from, const Frame& frame) = 0;
        // The connection is over and its memory may go.
        virtual void on_closed(TcpConnection& connection) = 0;
    };
    using Clock = std::chrono::steady_clock;

    // loop->data: a buffer as read_into_shared (uv_tools.h) wants it.
    TcpConnection(uv_loop_t* loop, std::uint64_t id, const std::string& secret, Listener& listener);
    TcpConnection(const TcpConnection&) = delete;
    TcpConnection& operator=(const TcpConnection&) = delete;

    std::uint64_t id() const { return id_; }
    bool authenticated() const { return state_ == State::kOpen; }
    Clock::time_point opened_at() const { return opened_at_; }

    void accept(uv_stream_t* server);
    void send(std::string bytes);
    // Sends last bytes, then closes when the peer has closed its side. What still comes in is ignored.
    void finish(std::string last);
    void close();

private:
    enum class State { kHello, kProof, kOpen, kFinishing };

    uv_stream_t* stream() { return reinterpret_cast<uv_stream_t*>(&tcp_); }
    void start_reading();
    void receive(std::string_view bytes);
    void advance_handshake();
    void answer_hello();
    void check_proof();
    void drain_frames();
    bool congested() { return uv_stream_get_write_queue_size(stream()) > kCongestion; }
    void on_written(int status);

    // Above this, nothing more is read from a client that does not fetch its answers.
    static constexpr std::size_t kCongestion = std::size_t{64} << 20;
    // Above this (waits that end all at once), the client is given up.
    static constexpr std::size_t kHopeless = std::size_t{1} << 30;

    std::uint64_t id_;
    const std::string& secret_;
    Listener& listener_;
    uv_tcp_t tcp_{};
    State state_ = State::kHello;
    Clock::time_point opened_at_ = Clock::now();
    bool paused_ = false;
    std::string greeting_;  // unfinished handshake message
    std::string client_nonce_;
    std::string server_nonce_;
    FrameReader frames_;
};

TcpConnection::TcpConnection(uv_loop_t* loop, std::uint64_t id, const std::string& secret, Listener& listener)
    : id_(id), secret_(secret), listener_(listener) {
    uv_tcp_init(loop, &tcp_);
    tcp_.data = this;
}

void TcpConnection::accept(uv_stream_t* server) {
    uv_os_fd_t fd = -1;
    if (uv_accept(server, stream()) != 0 || uv_fileno(reinterpret_cast<uv_handle_t*>(&tcp_), &fd) != 0) return close();
    tune_socket(fd);
    start_reading();
}

void TcpConnection::start_reading() {
    auto arrived = [](uv_stream_t* from, ssize_t count, const uv_buf_t* buffer) {
        auto* self = static_cast<TcpConnection*>(from->data);
        if (count < 0) return self->close();
        self->receive({buffer->base, static_cast<std::size_t>(count)});
    };
    if (uv_read_start(stream(), read_into_shared, arrived) != 0) close();
}

void TcpConnection::send(std::string bytes) {
    if (uv_is_closing(reinterpret_cast<uv_handle_t*>(&tcp_)) || state_ == State::kFinishing) return;
    write_owned(stream(), std::move(bytes), [this](int status) { on_written(status); });
    if (uv_stream_get_write_queue_size(stream()) > kHopeless) {
        log(LogLevel::kWarn, "store: a client that does not read its answers is disconnected");
        close();
    }
}

void TcpConnection::on_written(int status) {
    if (status == UV_ECANCELED) return;  // by close(): on_closed follows
    if (status != 0) return close();
    if (!paused_ || congested()) return;
    paused_ = false;
    drain_frames();
    if (!paused_ && !uv_is_closing(reinterpret_cast<uv_handle_t*>(&tcp_))) start_reading();
}

void TcpConnection::finish(std::string last) {
    send(std::move(last));
    state_ = State::kFinishing;
    auto* shutdown = new uv_shutdown_t;
    int status = uv_shutdown(shutdown, stream(), [](uv_shutdown_t* done, int) { delete done; });
    if (status != 0) {
        delete shutdown;
        close();
    } else if (std::exchange(paused_, false)) {
        start_reading();  // else the peer's end of stream would go unseen
    }
}

void TcpConnection::close() {
    close_once(&tcp_, [](uv_handle_t* handle) {
        auto* self = static_cast<TcpConnection*>(handle->data);
        self->listener_.on_closed(*self);
    });
}

void TcpConnection::receive(std::string_view bytes) {
    try {
        if (state_ == State::kFinishing) return;
        if (state_ == State::kOpen) {
            frames_.feed(bytes);
            return drain_frames();
        }
        // A client sends nothing beyond the two messages before it has the verdict, so this stays tiny.
        greeting_.append(bytes);
        advance_handshake();
    } catch (const std::exception& error) {
        log(LogLevel::kInfo, "store: a connection is closed: ", error.what());
        close();
    }
}

void TcpConnection::advance_handshake() {
    const std::string known = encode_hello(Role::kClient, "").substr(0, 4);
    if (greeting_.size() > (state_ == State::kHello ? kHelloSize : kProofSize))
        fail(DDP_ERROR_IO, "more bytes than the handshake has");
    if (state_ == State::kHello && greeting_.compare(0, 4, known, 0, greeting_.size()) != 0)
        fail(DDP_ERROR_IO, "the client is not libddp");
    if (state_ == State::kHello && greeting_.size() == kHelloSize)
        answer_hello();
    else if (state_ == State::kProof && greeting_.size() == kProofSize)
        check_proof();
    else
        return;
    // At once: this thread may outlive the cryptographic library's own clean-up when the process exits.
    wire::release_thread_state();
}

void TcpConnection::answer_hello() {
    Hello hello = decode_hello(Role::kClient, greeting_);
    client_nonce_ = hello.nonce;
    server_nonce_ = make_nonce();
    greeting_.clear();
    std::string answer = encode_hello(Role::kServer, server_nonce_);
    // The client of another version learns ours from the answer and says what is wrong.
    if (hello.version != kProtocolVersion) return finish(std::move(answer));
    state_ = State::kProof;
    send(std::move(answer));
}

void TcpConnection::check_proof() {
    if (!same_proof(greeting_, make_proof(Role::kClient, secret_, client_nonce_, server_nonce_))) {
        log(LogLevel::kWarn, "store: a client with another job secret was refused");
        return finish(refused_verdict());
    }
    greeting_.clear();
    greeting_.shrink_to_fit();
    state_ = State::kOpen;
    send(accepted_verdict(make_proof(Role::kServer, secret_, client_nonce_, server_nonce_)));
}

void TcpConnection::drain_frames() {
    try {
        while (state_ == State::kOpen && !uv_is_closing(reinterpret_cast<uv_handle_t*>(&tcp_))) {
            if (congested()) {
                paused_ = true;
                uv_read_stop(stream());
                return;
            }
            auto frame = frames_.next();
            if (!frame) return;
            listener_.on_frame(*this, *frame);
        }
    } catch (const std::exception& error) {
        log(LogLevel::kInfo, "store: a connection is closed: ", error.what());
        close();
    }
}

namespace {

using Clock = TcpConnection::Clock;

constexpr int kBacklog = 4096;
// A stranger may stay this long and send 76 bytes; an honest client proves itself at once.
constexpr auto kHandshakeBound = std::chrono::seconds(5);
constexpr std::uint64_t kSweepMs = 1000;
constexpr std::uint64_t kStopMs = 500;

[[noreturn]] void cannot_listen(const std::string& name, int status) {
    std::string why = std::generic_category().message(-status);
    switch (status) {
        case UV_EADDRINUSE:
            fail(DDP_ERROR_ALREADY_EXISTS, "the store server cannot listen on ", name,
                 ": the port is taken by another process; choose another port, or 0 for a free one");
        case UV_EACCES:
        case UV_EPERM:
            fail(DDP_ERROR_PERMISSION_DENIED, "the store server may not listen on ", name, ": ", why);
        case UV_EADDRNOTAVAIL:
            fail(DDP_ERROR_INVALID_ARGUMENT, "uri: the store server cannot listen on ", name,
                 ": the host is not an address of this machine");
        case UV_EMFILE:
        case UV_ENFILE:
            fail(DDP_ERROR_LIMIT, "the store server cannot listen on ", name, ": ", why, kRaiseOpenFiles);
        default:
            fail(DDP_ERROR_IO, "the store server cannot listen on ", name, ": ", why);
    }
}

}  // namespace

class TcpServer::Loop final : public TcpConnection::Listener {
public:
    Loop(const std::string& host, int port, const std::string& secret, const Deadline& deadline);
    ~Loop() override { stop(); }

    void stop();
    const SocketAddress& address() const { return address_; }

    void on_frame(TcpConnection& from, const Frame& frame) override;
    void on_closed(TcpConnection& connection) override;

private:
    void listen(const SocketAddress& address, const std::string& name);
    void close_handles();
    void begin_stop();
    void accept_one();
    void sweep();
    void expire();
    void arm();
    void reply(Caller caller, const Outcome& outcome);

    const std::string secret_;
    SocketAddress address_;
    std::vector<char> read_buffer_;
    uv_loop_t loop_{};
    uv_tcp_t listener_{};
    uv_async_t wake_{};
    uv_timer_t deadline_timer_{};
    uv_timer_t sweep_timer_{};
    uv_timer_t stop_timer_{};

    WaitList waits_;
    std::map<std::uint64_t, std::unique_ptr<TcpConnection>> connections_;
    std::uint64_t next_id_ = 1;
    std::optional<Clock::time_point> armed_;
    bool stopping_ = false;  // loop thread

    std::atomic<bool> stop_called_{false};
    std::thread thread_;
};

TcpServer::Loop::Loop(const std::string& host, int port, const std::string& secret, const Deadline& deadline)
    : secret_(secret),
      read_buffer_(kReadBuffer),
      waits_([this](Caller caller, const Outcome& outcome) { reply(caller, outcome); }) {
    SocketAddress wanted = resolve(host, port, deadline).front();
    init_loop(&loop_, "the store server");
    loop_.data = read_buffer_.data();
    uv_tcp_init(&loop_, &listener_);
    uv_async_init(&loop_, &wake_, [](uv_async_t* handle) { static_cast<Loop*>(handle->data)->begin_stop(); });
    for (uv_timer_t* timer : {&deadline_timer_, &sweep_timer_, &stop_timer_}) {
        uv_timer_init(&loop_, timer);
        timer->data = this;
    }
    listener_.data = wake_.data = this;
    try {
        listen(wanted, tcp_uri(host, port));
        thread_ = quiet_thread([this] { uv_run(&loop_, UV_RUN_DEFAULT); });
    } catch (...) {
        close_handles();
        uv_run(&loop_, UV_RUN_DEFAULT);
        uv_loop_close(&loop_);
        throw;
    }
}

void TcpServer::Loop::listen(const SocketAddress& address, const std::string& name) {
    int status = uv_tcp_bind(&listener_, address.get(), 0);
    if (status == 0) {
        status = uv_listen(reinterpret_cast<uv_stream_t*>(&listener_), kBacklog, [](uv_stream_t* server, int failed) {
            if (failed != 0)
                log(LogLevel::kWarn, "store: a connection cannot be accepted: ", uv_strerror(failed));
            else
                static_cast<Loop*>(server->data)->accept_one();
        });
    }
    if (status != 0) cannot_listen(name, status);
    uv_os_fd_t fd = -1;
    uv_fileno(reinterpret_cast<uv_handle_t*>(&listener_), &fd);
    address_ = local_address(fd);
    uv_timer_start(
        &sweep_timer_, [](uv_timer_t* timer) { static_cast<Loop*>(timer->data)->sweep(); }, kSweepMs, kSweepMs);
}

void TcpServer::Loop::stop() {
    if (!stop_called_.exchange(true)) {
        uv_async_send(&wake_);
        thread_.join();
        uv_loop_close(&loop_);
    }
}

void TcpServer::Loop::begin_stop() {
    stopping_ = true;
    close_once(&listener_);
    if (connections_.empty()) return close_handles();
    for (auto& [_, connection] : connections_)
        connection->finish(connection->authenticated() ? encode_closing("its owner ended it") : std::string());
    uv_timer_start(
        &stop_timer_,
        [](uv_timer_t* timer) {
            for (auto& [_, connection] : static_cast<Loop*>(timer->data)->connections_) connection->close();
        },
        kStopMs, 0);
}

void TcpServer::Loop::close_handles() {
    close_once(&listener_);
    close_once(&wake_);
    close_once(&deadline_timer_);
    close_once(&sweep_timer_);
    close_once(&stop_timer_);
}

void TcpServer::Loop::accept_one() {
    std::uint64_t id = next_id_++;
    auto& connection = connections_[id];
    connection = std::make_unique<TcpConnection>(&loop_, id, secret_, *this);
    connection->accept(reinterpret_cast<uv_stream_t*>(&listener_));
}

void TcpServer::Loop::sweep() {
    auto now = Clock::now();
    for (auto& [_, connection] : connections_)
        if (!connection->authenticated() && now - connection->opened_at() > kHandshakeBound) connection->close();
}

void TcpServer::Loop::on_frame(TcpConnection& from, const Frame& frame) {
    Request request = decode_request(frame);
    Caller caller{from.id(), frame.id};
    switch (request.op) {
        case Op::kCancel:
            waits_.cancel({caller.owner, static_cast<std::uint64_t>(request.number)});
            break;
        case Op::kGoodbye:
            from.close();
            break;
        default:
            if (!waits_.submit(caller, std::move(request), Clock::now()))
                fail(DDP_ERROR_IO, "a request number is used twice");
    }
    arm();
}

void TcpServer::Loop::on_closed(TcpConnection& connection) {
    std::uint64_t id = connection.id();
    connections_.erase(id);
    // While the server stops there is nobody left for whom the wills matter.
    if (!stopping_) {
        waits_.end_owner(id);
        arm();
    } else if (connections_.empty()) {
        close_handles();
    }
}

void TcpServer::Loop::expire() {
    armed_.reset();
    waits_.expire(Clock::now());
    arm();
}

void TcpServer::Loop::arm() {
    auto next = waits_.next_deadline();
    if (next == armed_ || stopping_) return;
    armed_ = next;
    if (!next) {
        uv_timer_stop(&deadline_timer_);
        return;
    }
    auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    uv_update_time(&loop_);  // the delay counts from the loop's own idea of now
    uv_timer_start(
        &deadline_timer_, [](uv_timer_t* timer) { static_cast<Loop*>(timer->data)->expire(); },
        left > 0 ? static_cast<std::uint64_t>(left) : 0, 0);
}

void TcpServer::Loop::reply(Caller caller, const Outcome& outcome) {
    auto connection = connections_.find(caller.owner);
    if (connection != connections_.end()) connection->second->send(encode_reply(caller.request, outcome));
}

TcpServer::TcpServer(const std::string& host, int port, const std::string& secret, const Deadline& deadline)
    : loop_(std::make_unique<Loop>(host, port, secret, deadline)) {}

TcpServer::~TcpServer() = default;

int TcpServer::port() const {
    return loop_->address().port();
}

std::string TcpServer::local_host() const {
    std::string host = loop_->address().host();
    if (host == "0.0.0.0") return "127.0.0.1";
    return host == "::" ? "::1" : host;
}

void TcpServer::stop() {
    loop_->stop();
}

}  // namespace libddp
