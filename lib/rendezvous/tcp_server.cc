#include "rendezvous/tcp_server.h"

#include <new>
#include <utility>

#include "rendezvous/protocol.h"
#include "util/error.h"
#include "util/log.h"

namespace libddp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSweepMs = wire::Gate::kLookMs;
constexpr std::uint64_t kStopMs = 500;
// Answers so long are held once, however many clients they are for.
constexpr std::size_t kLongAnswer = std::size_t{64} << 10;

}  // namespace

TcpServer::TcpServer(const std::string& host, int port, const std::string& secret,
                     const Deadline& deadline, const ServerLimits& limits)
    : limits_(limits),
      waits_([this](Caller caller, const Outcome& outcome) { reply(caller, outcome); }),
      room_(limits.requests),
      loop_("the store server", [this] { begin_stop(); }) {
    loop_.start([&] {
        uv_idle_init(loop_.loop(), &turns_);
        uv_timer_init(loop_.loop(), &deadline_timer_);
        uv_timer_init(loop_.loop(), &sweep_timer_);
        turns_.data = deadline_timer_.data = sweep_timer_.data = this;
        listener_.emplace(loop_.loop(), host, port, secret, deadline,
                          [this](wire::Gate::Guest guest) { admit(std::move(guest)); });
        const auto sweep = [](uv_timer_t* timer) { static_cast<TcpServer*>(timer->data)->sweep(); };
        uv_timer_start(&sweep_timer_, sweep, kSweepMs, kSweepMs);
    });
}

void TcpServer::begin_stop() {
    stopping_ = true;
    listener_->close();
    if (connections_.empty()) return loop_.end();
    for (auto& [_, connection] : connections_)
        connection->finish(encode_closing("its owner ended it"));
    const auto close_all = [](uv_timer_t* timer) {
        for (auto& [_, connection] : static_cast<TcpServer*>(timer->data)->connections_)
            connection->close();
    };
    uv_timer_start(&sweep_timer_, close_all, kStopMs, 0);
}

// ---- connections

void TcpServer::admit(wire::Gate::Guest guest) {
    const std::uint64_t id = next_id_++;
    const bool same_version = version_of(guest.identity) == kProtocolVersion;
    TcpConnection::Owner& owner = *this;
    auto connection =
        std::make_unique<TcpConnection>(loop_, id, std::move(guest), answers_.unsent(), owner);
    connections_.emplace(id, std::move(connection)).first->second->begin(same_version);
}

void TcpServer::sweep() {
    listener_->advance();
    for (const std::uint64_t id : room_.overdue(limits_.incomplete)) {
        TcpConnection& late = *connections_.at(id);
        log(LogLevel::kWarn, "store: a client at ", late.peer(),
            " is disconnected: the rest of a request does not come, and others wait for room");
        late.close();
    }
}

// ---- memory

void TcpServer::give_back_room(TcpConnection& connection) {
    for (const std::uint64_t id : room_.give_back(connection.id()))
        connections_.at(id)->room_given();
}

void TcpServer::again(TcpConnection& connection) {
    again_.insert(connection.id());
    uv_idle_start(&turns_,
                  [](uv_idle_t* idle) { static_cast<TcpServer*>(idle->data)->take_turns(); });
}

void TcpServer::take_turns() {
    for (const std::uint64_t id : std::exchange(again_, {}))
        if (auto found = connections_.find(id); found != connections_.end()) found->second->turn();
    if (again_.empty()) uv_idle_stop(&turns_);
}

void TcpServer::drop_slow_readers() {
    while (answers_.unsent() > limits_.answers) {
        TcpConnection* slowest = nullptr;
        for (auto& [_, connection] : connections_)
            if (slowest == nullptr || connection->unsent() > slowest->unsent())
                slowest = connection.get();
        if (slowest == nullptr || slowest->unsent() == 0) return;
        log(LogLevel::kWarn, "store: a client at ", slowest->peer(), " that does not read ",
            slowest->unsent(),
            " bytes of answers is disconnected: too many answers wait to be read");
        slowest->close();
    }
}

void TcpServer::on_frame(TcpConnection& from, const Frame& frame) {
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

void TcpServer::on_closed(TcpConnection& connection) {
    std::uint64_t id = connection.id();
    connections_.erase(id);
    // While the server stops there is nobody left for whom the wills matter.
    if (!stopping_) {
        waits_.end_owner(id);
        arm();
    } else if (connections_.empty()) {
        loop_.end();
    }
}

void TcpServer::expire() {
    armed_.reset();
    waits_.expire(Clock::now());
    arm();
}

void TcpServer::arm() {
    auto next = waits_.next_deadline();
    if (next == armed_ || stopping_) return;
    armed_ = next;
    if (!next) {
        uv_timer_stop(&deadline_timer_);
        return;
    }
    auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    uv_update_time(loop_.loop());  // the delay counts from the loop's own idea of now
    uv_timer_start(
        &deadline_timer_, [](uv_timer_t* timer) { static_cast<TcpServer*>(timer->data)->expire(); },
        left > 0 ? static_cast<std::uint64_t>(left) : 0, 0);
}

void TcpServer::reply(Caller caller, const Outcome& outcome) {
    auto connection = connections_.find(caller.owner);
    if (connection == connections_.end() || connection->second->closed()) return;
    try {
        std::string payload = encode_reply_payload(outcome);
        std::string header = encode_reply_header(caller.request, payload.size());
        if (payload.size() < kLongAnswer) {
            header += payload;
            connection->second->send(std::move(header));
        } else {
            connection->second->send(std::move(header), answers_.share(std::move(payload)));
        }
    } catch (const std::bad_alloc&) {
        // Without its answer the client would wait for ever.
        log(LogLevel::kWarn, "store: a client at ", connection->second->peer(),
            " is disconnected: there is no memory for its answer");
        connection->second->close();
    }
    drop_slow_readers();
}

int TcpServer::port() const {
    return listener_->address().port();
}

std::string TcpServer::local_host() const {
    std::string host = listener_->address().host();
    if (host == "0.0.0.0") return "127.0.0.1";
    return host == "::" ? "::1" : host;
}

}  // namespace libddp
