#include "rendezvous/tcp_client.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "rendezvous/uv_tools.h"
#include "util/deadline.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/quiet_thread.h"

namespace libddp {
namespace {

// The server ends a wait on time and says what was missing; only when it does not does the client, a little later.
constexpr std::int64_t kGraceMs = 2000;
// How long close() tries to get the farewell out.
constexpr std::uint64_t kFarewellMs = 300;

}  // namespace

TcpClient::TcpClient(int socket, std::string name, std::int64_t call_timeout_ms)
    : name_(std::move(name)), call_timeout_ms_(call_timeout_ms), read_buffer_(kReadBuffer) {
    try {
        init_loop(&loop_, "the store client");
    } catch (...) {
        ::close(socket);
        throw;
    }
    loop_.data = read_buffer_.data();
    uv_tcp_init(&loop_, &socket_);
    uv_timer_init(&loop_, &farewell_);
    uv_async_init(&loop_, &wake_, [](uv_async_t* handle) { static_cast<TcpClient*>(handle->data)->flush(); });
    socket_.data = farewell_.data = wake_.data = this;
    try {
        if (int status = uv_tcp_open(&socket_, socket); status != 0) {
            ::close(socket);
            fail(DDP_ERROR_IO, "the store client cannot start: ", std::generic_category().message(-status));
        }
        start_reading();
        thread_ = quiet_thread([this] { uv_run(&loop_, UV_RUN_DEFAULT); });
    } catch (...) {
        close_handles();
        uv_run(&loop_, UV_RUN_DEFAULT);
        uv_loop_close(&loop_);
        throw;
    }
}

TcpClient::~TcpClient() {
    close();
}

// ---- callers' threads

void TcpClient::check_usable() const {
    if (closed_) fail(DDP_ERROR_ABORTED, "the store handle was closed");
    if (lost_) fail(DDP_ERROR_UNAVAILABLE, lost_reason_);
}

void TcpClient::enqueue(std::string bytes) {
    outgoing_.push_back(std::move(bytes));
    uv_async_send(&wake_);  // the handle lives until closed_, which check_usable has ruled out under the same lock
}

void TcpClient::enqueue_cancel(std::uint64_t id) {
    Request request;
    request.op = Op::kCancel;
    request.number = static_cast<std::int64_t>(id);
    enqueue(encode_request(0, request));
}

Outcome TcpClient::perform(Request request, std::int64_t within_ms) {
    const bool waits = may_wait(request.op) && request.timeout_ms != kNoWait;
    const std::int64_t call_ms = within_ms > 0 ? within_ms : call_timeout_ms_;
    return perform_within(std::move(request), waits ? request.timeout_ms + kGraceMs : call_ms);
}

bool TcpClient::answers(std::int64_t within_ms) {
    try {
        perform_within(Request{}, within_ms);
        return true;
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        return false;
    }
}

Outcome TcpClient::perform_within(Request request, std::int64_t bound_ms) {
    const auto deadline = Deadline::after_ms(bound_ms);
    auto pending = std::make_shared<Pending>();

    std::unique_lock lock(mutex_);
    const std::uint64_t id = next_id_++;
    lock.unlock();
    std::string bytes = encode_request(id, request);  // may copy a lot: outside the lock
    lock.lock();
    check_usable();
    pending_.emplace(id, pending);
    enqueue(std::move(bytes));

    const auto waited = interrupt::wait(lock, pending->answered, deadline, [&] { return pending->done; });
    if (waited == interrupt::Waited::kReady) return std::move(pending->outcome);
    // An answer that came while the program was asked has taken it out already.
    if (pending_.erase(id) > 0 && may_wait(request.op) && !closed_ && !lost_) enqueue_cancel(id);
    if (waited == interrupt::Waited::kInterrupted)
        fail(DDP_ERROR_INTERRUPTED, "a wait for ", describe_wait(request), " of the store at ", name_,
             " was interrupted");
    fail(DDP_ERROR_TIMEOUT, "the store at ", name_, " did not answer within ", bound_ms, " ms");
}

Notifier::Id TcpClient::watch(const std::string& key, Notifier::Callback seen) {
    Request request;
    request.op = Op::kGet;
    request.keys.push_back(key);
    request.timeout_ms = kForever;
    auto pending = std::make_shared<Pending>();
    std::lock_guard lock(mutex_);
    check_usable();
    pending->watch = notifier_.add(std::move(seen));
    const std::uint64_t id = next_id_++;
    pending_.emplace(id, pending);
    watch_requests_[pending->watch] = id;
    enqueue(encode_request(id, request));
    return pending->watch;
}

Notifier::Id TcpClient::watch_connection(Notifier::Callback lost) {
    std::lock_guard lock(mutex_);
    if (closed_) check_usable();
    Notifier::Id id = notifier_.add(std::move(lost));
    if (lost_)
        notifier_.fire(id, lost_reason_, lost_gracefully_);
    else
        connection_watches_.insert(id);
    return id;
}

void TcpClient::unwatch(Notifier::Id id) {
    {
        std::lock_guard lock(mutex_);
        connection_watches_.erase(id);
        if (auto request = watch_requests_.extract(id)) {
            pending_.erase(request.mapped());
            if (!closed_ && !lost_) enqueue_cancel(request.mapped());
        }
    }
    notifier_.remove(id);
}

void TcpClient::close() {
    if (close_called_.exchange(true)) return;
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
        finish_pending(DDP_ERROR_ABORTED, "the store handle was closed while the call waited");
        uv_async_send(&wake_);
    }
    thread_.join();
    uv_loop_close(&loop_);
    notifier_.stop();
}

void TcpClient::finish_pending(ddp_status code, const std::string& message) {
    for (auto& [_, pending] : pending_) {
        pending->outcome = failed(code, message);
        pending->done = true;
        pending->answered.notify_all();
    }
    pending_.clear();
    watch_requests_.clear();
}

// ---- the loop's thread

void TcpClient::start_reading() {
    auto arrived = [](uv_stream_t* from, ssize_t count, const uv_buf_t* buffer) {
        auto* self = static_cast<TcpClient*>(from->data);
        if (count >= 0) return self->receive({buffer->base, static_cast<std::size_t>(count)});
        std::string reason = count == UV_EOF ? "its process ended" : uv_strerror(static_cast<int>(count));
        self->lose(str("the connection to the store at ", self->name_, " was lost: ", reason), false);
    };
    if (int status = uv_read_start(stream(), read_into_shared, arrived); status != 0)
        fail(DDP_ERROR_IO, "the store client cannot read: ", std::generic_category().message(-status));
}

void TcpClient::flush() {
    std::vector<std::string> messages;
    bool closed = false;
    {
        std::lock_guard lock(mutex_);
        messages.swap(outgoing_);
        closed = closed_;
    }
    if (!uv_is_closing(reinterpret_cast<uv_handle_t*>(&socket_))) {
        for (auto& message : messages) {
            write_owned(stream(), std::move(message), [this](int status) {
                if (status == 0 || status == UV_ECANCELED) return;
                lose(str("the connection to the store at ", name_, " was lost: ", uv_strerror(status)), false);
            });
        }
    }
    if (closed) say_goodbye();
}

void TcpClient::say_goodbye() {
    if (uv_is_closing(reinterpret_cast<uv_handle_t*>(&wake_))) return;
    close_once(&wake_);  // nobody signals it after closed_
    if (uv_is_closing(reinterpret_cast<uv_handle_t*>(&socket_))) return close_handles();
    Request request;
    request.op = Op::kGoodbye;
    write_owned(stream(), encode_request(0, request), [this](int) { close_handles(); });
    uv_timer_start(
        &farewell_, [](uv_timer_t* timer) { static_cast<TcpClient*>(timer->data)->close_handles(); }, kFarewellMs, 0);
}

void TcpClient::close_handles() {
    close_once(&wake_);
    close_once(&farewell_);
    close_once(&socket_);
}

void TcpClient::receive(std::string_view bytes) {
    try {
        frames_.feed(bytes);
        while (auto frame = frames_.next()) {
            if (frame->op == Op::kReply)
                answer(frame->id, decode_reply(*frame));
            else if (frame->op == Op::kClosing)
                return lose(str("the store at ", name_, " ended: ", decode_closing(*frame)), true);
            else
                fail(DDP_ERROR_IO, "an unknown kind of message");
        }
    } catch (const std::exception& error) {
        lose(str("the store at ", name_, " sent something that is not the store protocol: ", error.what()), false);
    }
}

void TcpClient::answer(std::uint64_t id, Outcome outcome) {
    std::lock_guard lock(mutex_);
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
    pending->outcome = std::move(outcome);
    pending->done = true;
    pending->answered.notify_all();
}

void TcpClient::lose(const std::string& reason, bool graceful) {
    {
        std::lock_guard lock(mutex_);
        if (!lost_ && !closed_) {
            lost_ = true;
            lost_gracefully_ = graceful;
            lost_reason_ = reason;
            finish_pending(DDP_ERROR_UNAVAILABLE, reason);
            for (auto id : connection_watches_) notifier_.fire(id, reason, graceful);
            connection_watches_.clear();
        }
    }
    close_once(&socket_);
}

}  // namespace libddp
