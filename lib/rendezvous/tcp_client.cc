#include "rendezvous/tcp_client.h"

#include <algorithm>
#include <utility>

#include "util/boot_clock.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "wire/sockets.h"

namespace libddp {
namespace {

// The server ends a wait on time and says what was missing; only when it does not does the client,
// a little later.
constexpr std::int64_t kGraceMs = 2000;
// Time for each MiB, so that a long value can cross a slow network.
constexpr std::int64_t kMebibyteMs = 1000;
constexpr std::size_t kMebibyte = std::size_t{1} << 20;
// How long after a request that it has answered the server keeps the connection for a client that
// is silent, with some seconds to spare.
constexpr std::int64_t kServerWaitsMs = kSilentConnectionMs - 5'000;

}  // namespace

TcpClient::TcpClient(std::unique_ptr<wire::Channel> channel, std::string name, int port,
                     std::int64_t call_timeout_ms, std::unique_ptr<TcpServer> server)
    : name_(std::move(name)),
      port_(port),
      call_timeout_ms_(call_timeout_ms),
      server_(std::move(server)),
      answered_ms_(boot_ms()),
      connection_(std::move(channel), name_, *this) {}

TcpClient::~TcpClient() {
    close();
}

// ---- callers' threads

void TcpClient::check_usable() const {
    if (closed_) fail(DDP_ERROR_ABORTED, "the store handle was closed");
    if (lost_) fail(DDP_ERROR_UNAVAILABLE, lost_->reason);
}

void TcpClient::send_cancel(std::uint64_t id) {
    if (closed_ || lost_) return;
    connection_.send(
        encode_request(0, Request{Op::kCancel, {}, {}, static_cast<std::int64_t>(id)}));
}

void TcpClient::extend(Pending& pending, std::size_t transfer) {
    if (!pending.has_time_for_transfers) return;
    const auto more_ms = static_cast<std::int64_t>(transfer / kMebibyte) * kMebibyteMs;
    pending.bound_ms += more_ms;
    pending.deadline = Deadline::after_ms(pending.deadline.remaining_ms() + more_ms);
}

Outcome TcpClient::perform(Request request, std::int64_t within_ms) {
    const bool waits = may_wait(request.op) && request.timeout_ms != kNoWait;
    const std::int64_t call_ms = within_ms > 0 ? within_ms : call_timeout_ms_;
    auto pending = std::make_shared<Pending>();
    pending->bound_ms = waits ? request.timeout_ms + kGraceMs : call_ms;
    pending->sent_ms = boot_ms();
    pending->deadline = Deadline::after_ms(pending->bound_ms);
    // The bound is for a server that is silent, so what is sent and what comes has time of its own.
    pending->has_time_for_transfers = within_ms == 0;

    Lock lock(mutex_);
    const std::uint64_t id = next_id_++;
    lock.unlock();
    std::string bytes = encode_request(id, request);  // may copy a lot: outside the lock
    lock.lock();
    check_usable();
    pending_.emplace(id, pending);
    connection_.send(std::move(bytes));
    extend(*pending, connection_.unsent());

    interrupt::Waited waited;
    do {
        const Deadline deadline = pending->deadline;  // an answer that begins to come moves it
        waited = interrupt::wait(lock, pending->answered, deadline,
                                 [&] { return pending->outcome.has_value(); });
    } while (waited == interrupt::Waited::kTimeout && !pending->deadline.expired());
    if (waited == interrupt::Waited::kReady) return std::move(*pending->outcome);
    // An answer that came while the program was asked has taken it out already.
    if (pending_.erase(id) > 0 && may_wait(request.op)) send_cancel(id);
    if (waited == interrupt::Waited::kInterrupted)
        fail(DDP_ERROR_INTERRUPTED, "a wait for ", describe_wait(request), " of the store at ",
             name_, " was interrupted");
    fail(DDP_ERROR_TIMEOUT, "the store at ", name_, " did not answer within ", pending->bound_ms,
         " ms");
}

Notifier::Id TcpClient::watch(const std::string& key, Notifier::Callback seen) {
    auto pending = std::make_shared<Pending>();
    const Lock lock(mutex_);
    check_usable();
    pending->watch = notifier_.add(std::move(seen));
    const std::uint64_t id = next_id_++;
    pending_.emplace(id, pending);
    watch_requests_[pending->watch] = id;
    connection_.send(encode_request(id, Request{Op::kGet, {key}, {}, 0, kForever}));
    return pending->watch;
}

Notifier::Id TcpClient::watch_connection(Notifier::Callback lost) {
    const Lock lock(mutex_);
    if (closed_) check_usable();
    Notifier::Id id = notifier_.add(std::move(lost));
    if (lost_)
        notifier_.fire(id, lost_->reason, lost_->graceful);
    else
        connection_watches_.insert(id);
    return id;
}

void TcpClient::unwatch(Notifier::Id id) {
    {
        const Lock lock(mutex_);
        connection_watches_.erase(id);
        if (auto request = watch_requests_.extract(id)) {
            pending_.erase(request.mapped());
            send_cancel(request.mapped());
        }
    }
    notifier_.remove(id);
}

void TcpClient::close() {
    {
        const Lock lock(mutex_);
        if (std::exchange(closed_, true)) return;
        finish_pending(DDP_ERROR_ABORTED, "the store handle was closed while the call waited");
    }
    // Before the server, so that its end is a farewell and not a lost connection.
    connection_.close();
    notifier_.stop();
    if (server_ != nullptr) server_->stop();
}

std::int64_t TcpClient::alive_until_ms() const {
    return answered_ms_ + kServerWaitsMs;
}

void TcpClient::finish_pending(ddp_status code, const std::string& message) {
    for (auto& [_, pending] : pending_) {
        pending->outcome = failed(code, message);
        pending->answered.notify_all();
    }
    pending_.clear();
    watch_requests_.clear();
}

// ---- the connection's thread

void TcpClient::on_answer(std::uint64_t id, Outcome outcome) {
    const Lock lock(mutex_);
    auto found = pending_.extract(id);
    if (!found) return;  // cancelled meanwhile
    auto& pending = found.mapped();
    if (pending->watch != 0) {
        watch_requests_.erase(pending->watch);
        if (outcome.code == DDP_OK && outcome.values.size() == 1)
            notifier_.fire(pending->watch, std::move(outcome.values.front()));
        else
            log(LogLevel::kWarn, "the store refused a watch: ", outcome.message);
        return;
    }
    answered_ms_ = std::max(answered_ms_.load(), pending->sent_ms);
    pending->outcome = std::move(outcome);
    pending->answered.notify_all();
}

void TcpClient::on_long_answer(std::size_t bytes) {
    const Lock lock(mutex_);
    for (auto& [_, pending] : pending_) extend(*pending, bytes);
}

void TcpClient::on_lost(const std::string& reason, bool graceful) {
    const Lock lock(mutex_);
    if (lost_ || closed_) return;
    lost_ = Loss{reason, graceful};
    finish_pending(DDP_ERROR_UNAVAILABLE, reason);
    for (auto id : connection_watches_) notifier_.fire(id, reason, graceful);
    connection_watches_.clear();
}

}  // namespace libddp
