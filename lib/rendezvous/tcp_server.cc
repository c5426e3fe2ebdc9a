#include "rendezvous/tcp_server.h"

#include <uv.h>

#include <atomic>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "rendezvous/sockets.h"
#include "rendezvous/tcp_connection.h"
#include "rendezvous/uri.h"
#include "rendezvous/uv_tools.h"
#include "rendezvous/wait_list.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/log.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

using Clock = std::chrono::steady_clock;

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
