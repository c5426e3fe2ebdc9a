// The tcp store's client: how it connects; then one connection, one thread that reads and writes, any number of threads that call.
#pragma once

#include <uv.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rendezvous/notifier.h"
#include "rendezvous/outbox.h"
#include "rendezvous/protocol.h"
#include "rendezvous/store_engine.h"
#include "util/deadline.h"
#include "wire/channel.h"

namespace libddp {

class TcpClient final : public StoreEngine {
public:
    // channel: of connect_to_server. port: the server's. call_timeout_ms: the bound of calls that do not wait for
    // others.
    TcpClient(std::unique_ptr<wire::Channel> channel, std::string name, int port, std::int64_t call_timeout_ms);
    ~TcpClient() override;

    Outcome perform(Request request, std::int64_t within_ms) override;
    bool answers(std::int64_t within_ms) override;
    Notifier::Id watch(const std::string& key, Notifier::Callback seen) override;
    Notifier::Id watch_connection(Notifier::Callback lost) override;
    void unwatch(Notifier::Id id) override;
    void close() override;
    int port() const override { return port_; }
    std::int64_t alive_until_ms() const override;

private:
    // A request without its answer. Either a thread waits for it or a watch does.
    struct Pending {
        std::condition_variable answered;
        bool done = false;
        std::int64_t bound_ms = 0;
        std::int64_t sent_ms = 0;  // boot_ms
        Deadline deadline = Deadline::after_ms(0);
        bool has_time_for_transfers = false;
        Outcome outcome;
        Notifier::Id watch = 0;
    };

    // transfers_count: the bound is for a server that is silent, so what is sent and what comes has time of its own.
    Outcome perform_within(Request request, std::int64_t bound_ms, bool transfers_count);
    void check_usable() const;  // with mutex_ held; throws
    static void extend(Pending& pending, std::size_t transfer);
    void enqueue(std::string bytes);
    void enqueue_cancel(std::uint64_t id);
    void finish_pending(ddp_status code, const std::string& message);

    // On the loop's thread.
    void turn();
    void talk();
    bool read();
    void watch(bool writes);
    void say_goodbye();
    void close_handles();
    void close_socket();
    void take_frames();
    void expect_long_answer();
    void answer(std::uint64_t id, Outcome outcome);
    void lose(const std::string& reason, bool graceful);

    const std::string name_;
    const int port_;
    const std::int64_t call_timeout_ms_;

    std::mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<Pending>> pending_;
    std::map<Notifier::Id, std::uint64_t> watch_requests_;
    std::set<Notifier::Id> connection_watches_;
    std::vector<std::string> outgoing_;
    std::atomic<std::size_t> unsent_{0};  // bytes of outgoing_ and outbox_
    std::uint64_t next_id_ = 1;
    bool closed_ = false;
    bool lost_ = false;
    bool lost_gracefully_ = false;
    std::string lost_reason_;
    std::atomic<std::int64_t> answered_ms_;  // boot_ms when the newest request was sent that has been answered

    const std::unique_ptr<char[]> read_buffer_;  // not zeroed: pages that nobody uses cost nothing
    uv_loop_t loop_{};
    std::unique_ptr<wire::Channel> channel_;  // null: closed
    uv_poll_t socket_{};
    uv_async_t wake_{};
    uv_timer_t farewell_{};
    // Used by the loop's thread:
    Outbox outbox_;
    FrameReader frames_;
    bool expects_long_answer_ = false;
    bool leaving_ = false;
    int watched_ = 0;
    std::thread thread_;
    std::atomic<bool> close_called_{false};
    Notifier notifier_;
};

// Opens a channel to a store server: blocking and bounded. Retries with jittered, growing pauses until the server answers or the deadline
// passes: the server's process may start later than this one. Throws Error: UNAVAILABLE (nobody listens, or not a libddp store), TIMEOUT
// (no answer at all), PERMISSION_DENIED (other secret), UNSUPPORTED (other protocol version).
std::unique_ptr<wire::Channel> connect_to_server(const std::string& host, int port, const std::string& secret,
                                                 const Deadline& deadline);

// The same without another try.
std::unique_ptr<wire::Channel> connect_once(const std::string& host, int port, const std::string& secret,
                                            const Deadline& deadline);

// The answer to one request that does not wait, over a connection of its own.
Outcome ask_once(const std::string& host, int port, const std::string& secret, const Request& request,
                 const Deadline& deadline);

}  // namespace libddp
