#include "rendezvous/tcp_client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include "rendezvous/uri.h"
#include "rendezvous/uv_tools.h"
#include "util/boot_clock.h"
#include "util/deadline.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"
#include "util/quiet_thread.h"
#include "wire/crypto.h"
#include "wire/sockets.h"

namespace libddp {
namespace {

// The server ends a wait on time and says what was missing; only when it does not does the client, a little later.
constexpr std::int64_t kGraceMs = 2000;
// Time for each MiB, so that a long value can cross a slow network.
constexpr std::int64_t kMebibyteMs = 1000;
constexpr std::size_t kMebibyte = std::size_t{1} << 20;
// How long after a request that it has answered the server keeps the connection for a client that is silent, with some seconds to spare.
constexpr std::int64_t kServerWaitsMs = kSilentConnectionMs - 5'000;
// How long close() tries to get the farewell out.
constexpr std::uint64_t kFarewellMs = 300;
// Reads of one turn of the loop, so that replies that keep coming do not hold back requests.
constexpr int kReads = 64;

}  // namespace

TcpClient::TcpClient(std::unique_ptr<wire::Channel> channel, std::string name, int port, std::int64_t call_timeout_ms)
    : name_(std::move(name)),
      port_(port),
      call_timeout_ms_(call_timeout_ms),
      answered_ms_(boot_ms()),
      read_buffer_(std::make_unique_for_overwrite<char[]>(kReadBuffer)),
      channel_(std::move(channel)) {
    init_loop(&loop_, "the store client");
    uv_timer_init(&loop_, &farewell_);
    uv_async_init(&loop_, &wake_, [](uv_async_t* handle) { static_cast<TcpClient*>(handle->data)->turn(); });
    socket_.data = farewell_.data = wake_.data = this;
    try {
        if (int status = uv_poll_init(&loop_, &socket_, channel_->fd()); status != 0)
            fail(DDP_ERROR_IO, "the store client cannot start: ", std::generic_category().message(-status));
        watch(false);
        thread_ = quiet_thread([this] {
            // Bytes that the server has sent with the end of the handshake are in the channel, not in the socket.
            turn();
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

TcpClient::~TcpClient() {
    close();
}

// ---- callers' threads

void TcpClient::check_usable() const {
    if (closed_) fail(DDP_ERROR_ABORTED, "the store handle was closed");
    if (lost_) fail(DDP_ERROR_UNAVAILABLE, lost_reason_);
}

void TcpClient::enqueue(std::string bytes) {
    unsent_ += bytes.size();
    outgoing_.push_back(std::move(bytes));
    uv_async_send(&wake_);  // the handle lives until closed_, which check_usable has ruled out under the same lock
}

void TcpClient::enqueue_cancel(std::uint64_t id) {
    enqueue(encode_request(0, Request{Op::kCancel, {}, {}, static_cast<std::int64_t>(id)}));
}

Outcome TcpClient::perform(Request request, std::int64_t within_ms) {
    const bool waits = may_wait(request.op) && request.timeout_ms != kNoWait;
    const std::int64_t call_ms = within_ms > 0 ? within_ms : call_timeout_ms_;
    const std::int64_t bound_ms = waits ? request.timeout_ms + kGraceMs : call_ms;
    return perform_within(std::move(request), bound_ms, within_ms == 0);
}

bool TcpClient::answers(std::int64_t within_ms) {
    try {
        perform_within(Request{}, within_ms, false);
        return true;
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT) throw;
        return false;
    }
}

void TcpClient::extend(Pending& pending, std::size_t transfer) {
    if (!pending.has_time_for_transfers) return;
    const auto more_ms = static_cast<std::int64_t>(transfer / kMebibyte) * kMebibyteMs;
    pending.bound_ms += more_ms;
    pending.deadline = Deadline::after_ms(pending.deadline.remaining_ms() + more_ms);
}

Outcome TcpClient::perform_within(Request request, std::int64_t bound_ms, bool transfers_count) {
    auto pending = std::make_shared<Pending>();
    pending->bound_ms = bound_ms;
    pending->sent_ms = boot_ms();
    pending->deadline = Deadline::after_ms(bound_ms);
    pending->has_time_for_transfers = transfers_count;

    std::unique_lock lock(mutex_);
    const std::uint64_t id = next_id_++;
    lock.unlock();
    std::string bytes = encode_request(id, request);  // may copy a lot: outside the lock
    lock.lock();
    check_usable();
    pending_.emplace(id, pending);
    enqueue(std::move(bytes));
    extend(*pending, unsent_);

    interrupt::Waited waited;
    do {
        const Deadline deadline = pending->deadline;  // an answer that begins to come moves it
        waited = interrupt::wait(lock, pending->answered, deadline, [&] { return pending->done; });
    } while (waited == interrupt::Waited::kTimeout && !pending->deadline.expired());
    if (waited == interrupt::Waited::kReady) return std::move(pending->outcome);
    // An answer that came while the program was asked has taken it out already.
    if (pending_.erase(id) > 0 && may_wait(request.op) && !closed_ && !lost_) enqueue_cancel(id);
    if (waited == interrupt::Waited::kInterrupted)
        fail(DDP_ERROR_INTERRUPTED, "a wait for ", describe_wait(request), " of the store at ", name_,
             " was interrupted");
    fail(DDP_ERROR_TIMEOUT, "the store at ", name_, " did not answer within ", pending->bound_ms, " ms");
}

Notifier::Id TcpClient::watch(const std::string& key, Notifier::Callback seen) {
    auto pending = std::make_shared<Pending>();
    std::lock_guard lock(mutex_);
    check_usable();
    pending->watch = notifier_.add(std::move(seen));
    const std::uint64_t id = next_id_++;
    pending_.emplace(id, pending);
    watch_requests_[pending->watch] = id;
    enqueue(encode_request(id, Request{Op::kGet, {key}, {}, 0, kForever}));
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

std::int64_t TcpClient::alive_until_ms() const {
    return answered_ms_ + kServerWaitsMs;
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

void TcpClient::turn() {
    bool closed = false;
    try {
        std::lock_guard lock(mutex_);
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
void TcpClient::talk() {
    try {
        const bool more = read();
        if (channel_ == nullptr) return;
        const std::size_t held = outbox_.bytes();
        const bool sent = outbox_.send(*channel_);
        unsent_ -= held - outbox_.bytes();
        watch(!sent);
        if (leaving_ && sent) return close_handles();
        if (more && !leaving_) uv_async_send(&wake_);
    } catch (const std::exception& error) {
        lose(str("the connection to the store at ", name_, " was lost: ", error.what()), false);
    }
}

// A few buffers. True: there may be more.
bool TcpClient::read() {
    for (int i = 0; i < kReads; ++i) {
        iovec piece{read_buffer_.get(), kReadBuffer};
        const std::size_t count = channel_->receive(&piece, 1);
        if (count == 0) return false;
        frames_.feed({read_buffer_.get(), count});
        take_frames();
        if (channel_ == nullptr) return false;
        expect_long_answer();
    }
    return true;
}

void TcpClient::watch(bool writes) {
    const int events = writes ? UV_READABLE | UV_WRITABLE : UV_READABLE;
    if (events == watched_) return;
    watched_ = events;
    const int status = uv_poll_start(&socket_, events, [](uv_poll_t* poll, int failed, int) {
        auto* self = static_cast<TcpClient*>(poll->data);
        if (failed != 0) self->watched_ = 0;  // libuv has stopped watching
        if (self->channel_ != nullptr) self->talk();
    });
    if (status != 0)
        fail(DDP_ERROR_IO, "the store client cannot watch its socket: ", std::generic_category().message(-status));
}

void TcpClient::say_goodbye() {
    if (std::exchange(leaving_, true)) return;
    close_once(&wake_);  // nobody signals it after closed_
    if (channel_ == nullptr) return close_handles();
    std::string bytes = encode_request(0, Request{Op::kGoodbye});
    unsent_ += bytes.size();
    outbox_.add(std::move(bytes));
    uv_timer_start(
        &farewell_, [](uv_timer_t* timer) { static_cast<TcpClient*>(timer->data)->close_handles(); }, kFarewellMs, 0);
    talk();
}

void TcpClient::close_handles() {
    close_once(&wake_);
    close_once(&farewell_);
    close_socket();
}

// A handle that was never initialised has no type.
void TcpClient::close_socket() {
    if (socket_.type == UV_POLL) close_once(&socket_);
    channel_.reset();
}

void TcpClient::take_frames() {
    try {
        while (auto frame = frames_.next()) {
            expects_long_answer_ = false;
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

// The first bytes of a frame say how long it is. All other answers come behind it.
void TcpClient::expect_long_answer() {
    const std::size_t size = frames_.announced();
    if (size < kMebibyte || std::exchange(expects_long_answer_, true)) return;
    frames_.expect_announced();
    std::lock_guard lock(mutex_);
    for (auto& [_, pending] : pending_) extend(*pending, size);
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
    answered_ms_ = std::max(answered_ms_.load(), pending->sent_ms);
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
    outbox_.clear();
    close_socket();
    if (leaving_) close_handles();
}

// ---- connecting: on the thread that opens the store

namespace {

// One attempt may take this long before the next begins: a lost SYN must not cost the whole deadline.
constexpr std::int64_t kAttemptMs = 10'000;
constexpr std::int64_t kFirstPauseMs = 20;
constexpr std::int64_t kLongestPauseMs = 500;
constexpr std::int64_t kSilenceMs = 10'000;

std::string reason(int error) {
    return std::generic_category().message(error);
}

// False: the deadline passed.
bool wait_for(int fd, short events, const Deadline& deadline) {
    while (true) {
        pollfd entry{fd, events, 0};
        const std::int64_t longest = interrupt::possible() ? interrupt::kSlice.count() : 60'000;
        int ready = poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(deadline.remaining_ms(), longest)));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) fail(DDP_ERROR_IO, "poll: ", reason(errno));
        if (deadline.expired()) return false;
        if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "interrupted");
    }
}

void connect_socket(int fd, const SocketAddress& address, const Deadline& deadline) {
    if (connect(fd, address.get(), address.size) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) fail(DDP_ERROR_UNAVAILABLE, reason(errno));
        if (!wait_for(fd, POLLOUT, deadline)) fail(DDP_ERROR_TIMEOUT, "no answer from ", address.host());
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) fail(DDP_ERROR_UNAVAILABLE, reason(error));
    }
    // Without a listener, a local port of the ephemeral range can connect to itself.
    SocketAddress self = local_address(fd);
    SocketAddress peer = peer_address(fd);
    if (self.port() == peer.port() && self.host() == peer.host()) fail(DDP_ERROR_UNAVAILABLE, reason(ECONNREFUSED));
}

// For handshake and channel alike.
void wait_for_server(int fd, short events, const Deadline& deadline) {
    if (!wait_for(fd, events, deadline))
        fail(DDP_ERROR_UNAVAILABLE, "something accepts connections there, but does not answer like a libddp store");
}

std::string receive(wire::Channel& channel, std::size_t size, const Deadline& deadline) {
    std::string bytes(size, '\0');
    for (std::size_t got = 0; got < size;) {
        iovec piece{bytes.data() + got, size - got};
        const std::size_t count = channel.receive(&piece, 1);
        if (count == 0) wait_for_server(channel.fd(), POLLIN, deadline);
        got += count;
    }
    return bytes;
}

// Failures that another attempt cannot mend.
struct Final {
    ddp_status code;
    std::string message;
};

std::unique_ptr<wire::Channel> shake_hands(Descriptor socket, const wire::Key& key, const Deadline& deadline) {
    auto handshake = wire::Handshake::client(std::move(socket), store_identity(), key, wire::Protection::kTls);
    try {
        for (wire::Handshake::Wants wants; (wants = handshake->advance()) != wire::Handshake::Wants::kNothing;)
            wait_for_server(handshake->fd(), wants == wire::Handshake::Wants::kRead ? POLLIN : POLLOUT, deadline);
    } catch (const wire::NotLibddp&) {
        throw Final{DDP_ERROR_UNAVAILABLE, "what listens there is not a libddp store; check host and port"};
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_PERMISSION_DENIED) throw;
        throw Final{DDP_ERROR_PERMISSION_DENIED,
                    str("the server has another job secret. Either it belongs to another job, so that this one needs a "
                        "port of its own "
                        "(MASTER_PORT), or the ranks of this job have different secrets: set the same DDP_SECRET or "
                        "DDP_SECRET_FILE for "
                        "every rank. Without one, a process has the secret of its user and of its launcher's job (",
                        error.what(), ")")};
    }
    auto channel = handshake->take_channel();
    const std::uint32_t version = decode_version(receive(*channel, kVersionSize, deadline));
    if (version != kProtocolVersion)
        throw Final{DDP_ERROR_UNSUPPORTED,
                    str("the server speaks version ", version, " of the store protocol and this library version ",
                        kProtocolVersion, "; use one libddp for all ranks")};
    return channel;
}

std::unique_ptr<wire::Channel> attempt(const std::string& host, int port, const wire::Key& key,
                                       const Deadline& deadline) {
    ErrorInfo last;
    for (const auto& address : resolve(host, port, deadline)) {
        Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!socket) {
            if (lacks_descriptors(errno)) throw Final{DDP_ERROR_LIMIT, reason(errno) + kRaiseOpenFiles};
            last = {DDP_ERROR_UNAVAILABLE, reason(errno)};
            continue;
        }
        try {
            auto bound = Deadline::after_ms(std::min(deadline.remaining_ms(), kAttemptMs));
            connect_socket(socket.get(), address, bound);
            tune_socket(socket.get());
            return shake_hands(std::move(socket), key, bound);
        } catch (const Error& error) {
            last = error.info();
            if (last.code == DDP_ERROR_INTERRUPTED) break;
        }
    }
    throw Error(last);
}

[[noreturn]] void cannot_be_used(const std::string& name, const Final& failure) {
    fail(failure.code, "the store at ", name, " cannot be used: ", failure.message);
}

[[noreturn]] void interrupted(const std::string& name) {
    fail(DDP_ERROR_INTERRUPTED, "a wait for the store at ", name, " was interrupted before there was a connection");
}

void send_all(wire::Channel& channel, std::string bytes, const std::string& name, const Deadline& deadline) {
    Outbox outbox;
    outbox.add(std::move(bytes));
    while (!outbox.send(channel))
        if (!wait_for(channel.fd(), POLLOUT, deadline))
            fail(DDP_ERROR_TIMEOUT, "the store at ", name, " takes nothing");
}

}  // namespace

std::unique_ptr<wire::Channel> connect_once(const std::string& host, int port, const std::string& secret,
                                            const Deadline& deadline) {
    try {
        return attempt(host, port, wire::derive_key(secret, kStoreKey), deadline);
    } catch (const Final& failure) {
        cannot_be_used(tcp_uri(host, port), failure);
    }
}

Outcome ask_once(const std::string& host, int port, const std::string& secret, const Request& request,
                 const Deadline& deadline) {
    const auto channel = connect_once(host, port, secret, deadline);
    const std::string name = tcp_uri(host, port);
    send_all(*channel, encode_request(1, request), name, deadline);
    FrameReader frames;
    std::array<char, 4096> buffer;
    for (;;) {
        if (const auto frame = frames.next()) return decode_reply(*frame);
        iovec piece{buffer.data(), buffer.size()};
        if (const std::size_t count = channel->receive(&piece, 1); count > 0)
            frames.feed({buffer.data(), count});
        else if (!wait_for(channel->fd(), POLLIN, deadline))
            fail(DDP_ERROR_TIMEOUT, "the store at ", name, " does not answer");
    }
}

std::unique_ptr<wire::Channel> connect_to_server(const std::string& host, int port, const std::string& secret,
                                                 const Deadline& deadline) {
    const wire::Key key = wire::derive_key(secret, kStoreKey);
    const std::string name = tcp_uri(host, port);
    const auto started = Deadline::Clock::now();
    auto waited_ms = [&] {
        return std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - started).count();
    };
    std::optional<std::minstd_rand> random;  // seldom needed
    std::int64_t pause = kFirstPauseMs;
    bool told = false;
    while (true) {
        ErrorInfo last;
        try {
            return attempt(host, port, key, deadline);
        } catch (const Final& failure) {
            cannot_be_used(name, failure);
        } catch (const Error& error) {
            last = error.info();
        }
        if (last.code == DDP_ERROR_INTERRUPTED) interrupted(name);
        if (last.code == DDP_ERROR_LIMIT) cannot_be_used(name, {last.code, last.message});
        if (deadline.expired())
            fail(last.code == DDP_ERROR_TIMEOUT ? DDP_ERROR_TIMEOUT : DDP_ERROR_UNAVAILABLE, "the store at ", name,
                 " was not reached within ", waited_ms(), " ms: ", last.message,
                 ". Check that the process that hosts it (rank 0 or the launcher) runs, that host and port are right, "
                 "and that no"
                 " firewall is between");
        if (!told && waited_ms() > kSilenceMs) {
            told = true;
            log(LogLevel::kWarn, "still trying to reach the store at ", name, ": ", last.message);
        }
        // Jitter spreads the ranks of a large job, which all start to knock at the same moment.
        if (!random) random.emplace(std::random_device{}());
        const std::chrono::milliseconds jittered(
            std::uniform_int_distribution<std::int64_t>(pause / 2, pause * 3 / 2)(*random));
        if (!interrupt::sleep(jittered, deadline)) interrupted(name);
        pause = std::min(pause * 3 / 2, kLongestPauseMs);
    }
}

}  // namespace libddp
