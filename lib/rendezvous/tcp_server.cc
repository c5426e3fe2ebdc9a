#include "rendezvous/tcp_server.h"

#include <sys/socket.h>
#include <uv.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/protocol.h"
#include "rendezvous/tcp_connection.h"
#include "rendezvous/uri.h"
#include "rendezvous/uv_tools.h"
#include "rendezvous/wait_list.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/quiet_thread.h"
#include "wire/crypto.h"
#include "wire/gate.h"
#include "wire/sockets.h"

namespace libddp {
namespace {

using Clock = TcpConnection::Clock;

constexpr int kBacklog = 4096;
// An honest client proves itself at once.
constexpr auto kHandshakeBound = std::chrono::seconds(5);
constexpr std::uint64_t kSweepMs = wire::Gate::kLookMs;
constexpr std::uint64_t kStopMs = 500;
// See ServerLimits::incomplete.
constexpr std::size_t kBytesPerSecond = std::size_t{4} << 20;
// Answers so long are held once, however many clients they are for.
constexpr std::size_t kLongAnswer = std::size_t{64} << 10;

[[noreturn]] void cannot_listen(const std::string& name, int error) {
    std::string why = std::generic_category().message(error);
    switch (error) {
        case EADDRINUSE:
            fail(DDP_ERROR_ALREADY_EXISTS, "the store server cannot listen on ", name,
                 ": the port is taken by another process; choose another port, or 0 for a free one");
        case EACCES:
        case EPERM:
            fail(DDP_ERROR_PERMISSION_DENIED, "the store server may not listen on ", name, ": ", why);
        case EADDRNOTAVAIL:
            fail(DDP_ERROR_INVALID_ARGUMENT, "uri: the store server cannot listen on ", name,
                 ": the host is not an address of this machine");
        case EMFILE:
        case ENFILE:
            fail(DDP_ERROR_LIMIT, "the store server cannot listen on ", name, ": ", why, kRaiseOpenFiles);
        default:
            fail(DDP_ERROR_IO, "the store server cannot listen on ", name, ": ", why);
    }
}

// How often a name that has no address of this host yet is looked up again.
constexpr std::chrono::milliseconds kLookAgain{200};
// How long a name may stand for another host. Name servers hold an address for a while after its host is gone: those of
// Kubernetes for up to 30 s.
constexpr std::int64_t kForeignMs = 60'000;

bool is_of_this_host(const SocketAddress& address) {
    const Descriptor probe(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    return !probe || ::bind(probe.get(), address.get(), address.size) == 0 || errno != EADDRNOTAVAIL;
}

// The first address that this host has.
std::optional<SocketAddress> own_of(const std::vector<SocketAddress>& addresses) {
    const auto own = std::find_if(addresses.begin(), addresses.end(), is_of_this_host);
    return own == addresses.end() ? std::nullopt : std::optional(*own);
}

// The address of a name or number. Where a cluster starts a host, or starts one again, the host may know its address before the
// name servers do. So this waits for the name until the deadline; while they give the address of another host, for kForeignMs.
SocketAddress address_to_listen_on(const std::string& host, int port, const Deadline& deadline) {
    const auto foreign = Deadline::after_ms(std::min(kForeignMs, deadline.remaining_ms()));
    bool told = false;
    while (true) {
        std::vector<SocketAddress> found;
        ErrorInfo error;
        try {
            found = resolve(host, port, deadline);
        } catch (const Error& failure) {
            error = failure.info();
            if (error.code != DDP_ERROR_UNAVAILABLE) throw;
        }
        if (const auto own = own_of(found)) return *own;
        // A number stays what it is. Listening there says what is wrong.
        if (!found.empty() && (is_numeric(host) || foreign.expired())) return found.front();
        const std::string why = found.empty() ? error.message
                                              : str("the host name '", host, "' is ", found.front().host(),
                                                    ", which is not an address of this machine");
        if (!std::exchange(told, true))
            log(LogLevel::kWarn, "the store server waits for the address of its host: ", why);
        if (!interrupt::sleep(kLookAgain, deadline))
            fail(DDP_ERROR_INTERRUPTED, "a wait for the address of the store server's host was interrupted: ", why);
        if (!deadline.expired()) continue;
        if (found.empty()) throw Error(error);
        return found.front();
    }
}

}  // namespace

class TcpServer::Loop final : public TcpConnection::Owner {
public:
    Loop(const std::string& host, int port, const std::string& secret, const Deadline& deadline,
         const ServerLimits& limits);
    ~Loop() override { stop(); }

    void stop();
    const SocketAddress& address() const { return address_; }

    void on_frame(TcpConnection& from, const Frame& frame) override;
    void on_closed(TcpConnection& connection) override;
    bool ask_room(TcpConnection& connection, std::size_t bytes) override;
    void give_back_room(TcpConnection& connection, std::size_t bytes) override;
    const ServerLimits& limits() const override { return limits_; }
    void again(TcpConnection& connection) override;

private:
    void listen(const SocketAddress& address, const std::string& name);
    void advance_gate();
    void close_gate();
    void close_handles();
    void begin_stop();
    void admit(wire::Gate::Guest guest);
    void sweep();
    void expire();
    void arm();
    void take_turns();
    void reply(Caller caller, const Outcome& outcome);
    SharedBytes share(std::string&& bytes);
    void drop_slow_readers();

    const wire::Key key_;
    const ServerLimits limits_;
    SocketAddress address_;
    std::vector<char> read_buffer_;
    std::unique_ptr<wire::Gate> gate_;
    uv_loop_t loop_{};
    uv_poll_t gate_poll_{};
    uv_async_t wake_{};
    uv_idle_t turns_{};
    uv_timer_t deadline_timer_{};
    uv_timer_t sweep_timer_{};
    uv_timer_t stop_timer_{};

    WaitList waits_;
    std::size_t unsent_ = 0;  // bytes of answers, shared ones counted once
    std::map<std::uint64_t, std::unique_ptr<TcpConnection>> connections_;
    std::uint64_t next_id_ = 1;
    std::set<std::uint64_t> again_;
    std::array<std::weak_ptr<const std::string>, 8> shared_;  // the latest long answers
    std::size_t next_shared_ = 0;
    std::size_t room_ = limits_.requests;                           // for long requests
    std::deque<std::pair<std::uint64_t, std::size_t>> room_asked_;  // connection, bytes
    std::optional<Clock::time_point> armed_;
    bool stopping_ = false;  // loop thread

    std::atomic<bool> stop_called_{false};
    std::thread thread_;
};

TcpServer::Loop::Loop(const std::string& host, int port, const std::string& secret, const Deadline& deadline,
                      const ServerLimits& limits)
    : key_(wire::derive_key(secret, kStoreKey)),
      limits_(limits),
      read_buffer_(kReadBuffer),
      waits_([this](Caller caller, const Outcome& outcome) { reply(caller, outcome); }) {
    const SocketAddress wanted = address_to_listen_on(host, port, deadline);
    init_loop(&loop_, "the store server");
    loop_.data = read_buffer_.data();
    uv_idle_init(&loop_, &turns_);
    uv_async_init(&loop_, &wake_, [](uv_async_t* handle) { static_cast<Loop*>(handle->data)->begin_stop(); });
    for (uv_timer_t* timer : {&deadline_timer_, &sweep_timer_, &stop_timer_}) {
        uv_timer_init(&loop_, timer);
        timer->data = this;
    }
    gate_poll_.data = turns_.data = wake_.data = this;
    try {
        listen(wanted, tcp_uri(host, port));
        thread_ = quiet_thread([this] {
            uv_run(&loop_, UV_RUN_DEFAULT);
            wire::release_thread_state();
        });
    } catch (...) {
        close_handles();
        uv_run(&loop_, UV_RUN_DEFAULT);
        uv_loop_close(&loop_);
        throw;
    }
}

void TcpServer::Loop::listen(const SocketAddress& address, const std::string& name) {
    Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(socket.get(), address.get(), address.size) != 0 || ::listen(socket.get(), kBacklog) != 0)
        cannot_listen(name, errno);
    address_ = local_address(socket.get());
    auto lookup = [this](std::string_view identity) {
        return version_of(identity) ? std::optional(key_) : std::nullopt;
    };
    gate_ = std::make_unique<wire::Gate>(
        std::move(socket), "store", lookup, wire::Protection::kTls,
        [this](wire::Gate::Guest guest) { admit(std::move(guest)); }, kHandshakeBound);
    int status = uv_poll_init(&loop_, &gate_poll_, gate_->fd());
    if (status == 0)
        status = uv_poll_start(&gate_poll_, UV_READABLE,
                               [](uv_poll_t* poll, int, int) { static_cast<Loop*>(poll->data)->advance_gate(); });
    if (status != 0) cannot_listen(name, -status);
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
    close_gate();
    if (connections_.empty()) return close_handles();
    for (auto& [_, connection] : connections_) connection->finish(encode_closing("its owner ended it"));
    uv_timer_start(
        &stop_timer_,
        [](uv_timer_t* timer) {
            for (auto& [_, connection] : static_cast<Loop*>(timer->data)->connections_) connection->close();
        },
        kStopMs, 0);
}

// A handle that was never initialised has no type.
void TcpServer::Loop::close_gate() {
    if (gate_poll_.type == UV_POLL) close_once(&gate_poll_);
    gate_.reset();
}

void TcpServer::Loop::close_handles() {
    close_gate();
    close_once(&wake_);
    close_once(&turns_);
    close_once(&deadline_timer_);
    close_once(&sweep_timer_);
    close_once(&stop_timer_);
}

// ---- connections

void TcpServer::Loop::advance_gate() {
    if (gate_ == nullptr) return;
    try {
        gate_->advance();
    } catch (const std::exception& error) {
        log(LogLevel::kWarn, "store: connections cannot be served now: ", error.what());
    }
}

void TcpServer::Loop::admit(wire::Gate::Guest guest) {
    const std::uint64_t id = next_id_++;
    auto connection = std::make_unique<TcpConnection>(&loop_, id, std::move(guest), &unsent_, *this);
    connections_.emplace(id, std::move(connection)).first->second->begin();
}

void TcpServer::Loop::sweep() {
    advance_gate();
    if (room_asked_.empty()) return;
    const auto now = Clock::now();
    for (auto& [_, connection] : connections_) {
        const auto bound = limits_.incomplete + std::chrono::seconds(connection->room() / kBytesPerSecond);
        if (connection->room() == 0 || connection->awaits_room() || now - connection->room_since() <= bound) continue;
        log(LogLevel::kWarn, "store: a client at ", connection->peer(),
            " is disconnected: the rest of a request does not come, and others wait for room");
        connection->close();
    }
}

// ---- memory

bool TcpServer::Loop::ask_room(TcpConnection& connection, std::size_t bytes) {
    if (room_asked_.empty() && bytes <= room_) {
        room_ -= bytes;
        return true;
    }
    room_asked_.emplace_back(connection.id(), bytes);
    return false;
}

void TcpServer::Loop::give_back_room(TcpConnection& connection, std::size_t bytes) {
    if (std::erase_if(room_asked_, [&](const auto& asked) { return asked.first == connection.id(); }) == 0)
        room_ += bytes;
    while (!room_asked_.empty() && room_asked_.front().second <= room_) {
        const auto [id, asked] = room_asked_.front();
        room_asked_.pop_front();
        room_ -= asked;
        connections_.at(id)->room_given();
    }
}

void TcpServer::Loop::again(TcpConnection& connection) {
    again_.insert(connection.id());
    uv_idle_start(&turns_, [](uv_idle_t* idle) { static_cast<Loop*>(idle->data)->take_turns(); });
}

void TcpServer::Loop::take_turns() {
    for (const std::uint64_t id : std::exchange(again_, {}))
        if (auto found = connections_.find(id); found != connections_.end()) found->second->turn();
    if (again_.empty()) uv_idle_stop(&turns_);
}

// Ranks that wait for one key get one answer.
SharedBytes TcpServer::Loop::share(std::string&& bytes) {
    for (const auto& kept : shared_)
        if (SharedBytes found = kept.lock(); found != nullptr && *found == bytes) return found;
    unsent_ += bytes.size();
    SharedBytes made(new std::string(std::move(bytes)), [this](const std::string* mine) {
        unsent_ -= mine->size();
        delete mine;
    });
    shared_[next_shared_++ % shared_.size()] = made;
    return made;
}

void TcpServer::Loop::drop_slow_readers() {
    while (unsent_ > limits_.answers) {
        TcpConnection* slowest = nullptr;
        for (auto& [_, connection] : connections_)
            if (slowest == nullptr || connection->unsent() > slowest->unsent()) slowest = connection.get();
        if (slowest == nullptr || slowest->unsent() == 0) return;
        log(LogLevel::kWarn, "store: a client at ", slowest->peer(), " that does not read ", slowest->unsent(),
            " bytes of answers is disconnected: too many answers wait to be read");
        slowest->close();
    }
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
    if (connection == connections_.end() || connection->second->closed()) return;
    try {
        std::string payload = encode_reply_payload(outcome);
        std::string header = encode_reply_header(caller.request, payload.size());
        if (payload.size() < kLongAnswer) {
            header += payload;
            connection->second->send(std::move(header));
        } else {
            connection->second->send(std::move(header), share(std::move(payload)));
        }
    } catch (const std::bad_alloc&) {
        // Without its answer the client would wait for ever.
        log(LogLevel::kWarn, "store: a client at ", connection->second->peer(),
            " is disconnected: there is no memory for its answer");
        connection->second->close();
    }
    drop_slow_readers();
}

TcpServer::TcpServer(const std::string& host, int port, const std::string& secret, const Deadline& deadline,
                     const ServerLimits& limits)
    : loop_(std::make_unique<Loop>(host, port, secret, deadline, limits)) {}

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
