// The tcp store's client: one connection (tcp_client_connection.h), any number of threads that
// call.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/notifier.h"
#include "rendezvous/store_engine.h"
#include "rendezvous/tcp_client_connection.h"
#include "rendezvous/tcp_server.h"
#include "util/deadline.h"
#include "util/mutex.h"

namespace libddp {

class TcpClient final : public StoreEngine, TcpClientConnection::Owner {
public:
    // channel: of connect_to_server. port: the server's. call_timeout_ms: the bound of calls that
    // do not wait for others. server: of this process; it ends after this client.
    TcpClient(std::unique_ptr<wire::Channel> channel, std::string name, int port,
              std::int64_t call_timeout_ms, std::unique_ptr<TcpServer> server = nullptr);
    ~TcpClient() override;

    Outcome perform(Request request, std::int64_t within_ms) override;
    Notifier::Id watch(const std::string& key, Notifier::Callback seen) override;
    Notifier::Id watch_connection(Notifier::Callback lost) override;
    void unwatch(Notifier::Id id) override;
    void close() override;
    int port() const override { return port_; }
    std::int64_t alive_until_ms() const override;

private:
    // A request without its answer. Either a thread waits for it or a watch does. Used with mutex_
    // held, but for what the caller writes before others have it.
    struct Pending {
        Condition answered;
        std::int64_t bound_ms = 0;
        std::int64_t sent_ms = 0;  // boot_ms
        Deadline deadline = Deadline::after_ms(0);
        bool has_time_for_transfers = false;
        std::optional<Outcome> outcome;
        Notifier::Id watch = 0;
    };
    struct Loss {
        std::string reason;
        bool graceful;
    };

    void check_usable() const DDP_REQUIRES(mutex_);  // throws
    static void extend(Pending& pending, std::size_t transfer);
    void send_cancel(std::uint64_t id) DDP_REQUIRES(mutex_);
    void finish_pending(ddp_status code, const std::string& message) DDP_REQUIRES(mutex_);

    void on_answer(std::uint64_t id, Outcome outcome) override;
    void on_long_answer(std::size_t bytes) override;
    void on_lost(const std::string& reason, bool graceful) override;

    const std::string name_;
    const int port_;
    const std::int64_t call_timeout_ms_;
    const std::unique_ptr<TcpServer> server_;

    Mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<Pending>> pending_ DDP_GUARDED_BY(mutex_);
    std::map<Notifier::Id, std::uint64_t> watch_requests_ DDP_GUARDED_BY(mutex_);
    std::set<Notifier::Id> connection_watches_ DDP_GUARDED_BY(mutex_);
    std::uint64_t next_id_ DDP_GUARDED_BY(mutex_) = 1;
    bool closed_ DDP_GUARDED_BY(mutex_) = false;
    std::optional<Loss> lost_ DDP_GUARDED_BY(mutex_);
    // boot_ms when the newest request was sent that has been answered
    std::atomic<std::int64_t> answered_ms_;
    Notifier notifier_;
    TcpClientConnection connection_;
};

}  // namespace libddp
