// The store on etcd: participants write what they ask for as batches below one prefix, and each applies all batches, in etcd's order, to
// a replica of its own (replica.h). So every operation has the semantics of the other stores, and etcd does what it is good at: one
// order, durable, that survives the loss of servers.
//
// Threads of a participant: one writes, one reads the watch, and one keeps the lease alive, buries the dead and makes snapshots. Threads that
// call only wait.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/replica.h"
#include "rendezvous/notifier.h"
#include "rendezvous/store_engine.h"
#include "util/error.h"

namespace libddp {

class EtcdStore final : public StoreEngine {
public:
    // Joins. call_timeout_ms: the bound of calls that do not wait for others. Throws as EtcdClient.
    EtcdStore(const EtcdAddress& address, std::string name, std::int64_t call_timeout_ms, const Deadline& deadline);
    ~EtcdStore() override;

    Outcome perform(Request request, std::int64_t within_ms) override;
    bool answers(std::int64_t within_ms) override;
    Notifier::Id watch(const std::string& key, Notifier::Callback seen) override;
    Notifier::Id watch_connection(Notifier::Callback lost) override;
    void unwatch(Notifier::Id id) override;
    void close() override;
    std::int64_t notices_death_ms() const override;
    std::int64_t raise_fence(std::int64_t at_least) override;
    std::int64_t alive_until_ms() const override;

private:
    using Lock = std::unique_lock<std::mutex>;
    // A request that changes something.
    struct Entry {
        std::uint64_t id = 0;
        Request request;
        std::string bytes;
        std::optional<Outcome> outcome;  // none: it has not been applied here yet
    };
    using Entries = std::deque<std::shared_ptr<Entry>>;

    // For the threads that call; with mutex_ held.
    void check_usable() const;
    bool usable() const { return !closed_ && !lost_; }
    [[noreturn]] void no_answer(std::int64_t within_ms) const;
    [[noreturn]] void interrupted(const Request& request) const;
    std::shared_ptr<Entry> submit(Request request);
    void await(Lock& lock, Entry& entry, const Deadline& bound, std::int64_t bound_ms);
    void synchronise(Lock& lock, const Request& request, const Deadline& bound, std::int64_t bound_ms);
    Outcome look(Lock& lock, const Request& request, const Deadline& bound, std::int64_t bound_ms);

    void join(const Deadline& deadline);
    void load(const Deadline& deadline);
    void load_at_one_revision(const Deadline& deadline);
    void read_all(EtcdRange range, std::int64_t& revision, const Deadline& deadline,
                  const std::function<void(EtcdEntry)>& seen);
    bool renew_lease(EtcdClient& client);
    void keep_lease_while_loading();

    void write();
    std::int64_t write_batch(Entries& entries);
    std::int64_t commit_piece(std::uint64_t batch, std::uint64_t piece, std::string value);
    std::int64_t newest_batch(EtcdClient& client, const Deadline& deadline) const;

    void follow();
    void take_news(EtcdNews news);
    void skip_compacted(std::int64_t revision);
    void answer(Caller caller, std::optional<Outcome> outcome);
    void announce();

    void keep();
    void beat();
    void look_for_stale_watch();
    void bury_the_dead();
    void make_snapshot();
    void remove_logged(const std::vector<EtcdReplica::Logged>& logged);

    void lose(const std::string& reason);
    void lose_if_final(const Error& error);
    void say_goodbye();
    std::string key(const std::string& rest) const { return root_ + rest; }
    EtcdRange below(const std::string& rest) const;
    std::int64_t patience_ms() const;

    const EtcdAddress address_;
    const std::string name_;
    const std::string root_;
    const std::int64_t call_timeout_ms_;
    const std::uint64_t owner_;
    std::int64_t lease_ = 0;
    std::atomic<std::int64_t> renewed_ms_{
        0};                       // boot_ms before the request was sent that etcd has answered last with a lease
    std::int64_t joined_at_ = 0;  // revision of its own key

    std::mutex mutex_;
    std::condition_variable changed_;
    std::condition_variable writer_wake_;
    std::condition_variable keeper_wake_;
    EtcdReplica replica_;
    std::int64_t applied_ = 0;  // revision that the replica stands for
    std::int64_t head_revision_ = 0;
    Entries outgoing_;
    std::map<std::uint64_t, std::shared_ptr<Entry>> in_flight_;
    std::uint64_t next_request_ = 1;
    std::uint64_t syncs_asked_ = 0;
    std::uint64_t syncs_done_ = 0;
    std::int64_t sync_revision_ = 0;
    bool closed_ = false;
    std::optional<ErrorInfo> lost_;
    bool attend_ = false;  // the keeper is to look
    std::map<Notifier::Id, std::string> watches_;
    std::set<Notifier::Id> connection_watches_;

    // Each used by one thread:
    std::uint64_t next_batch_ = 1;                         // writer
    std::set<std::uint64_t> tried_to_bury_;                // keeper
    Deadline::Clock::time_point next_beat_, last_answer_;  // keeper

    const std::shared_ptr<EtcdEndpoint> endpoint_;
    EtcdClient writer_client_;
    EtcdClient follower_client_;
    EtcdClient keeper_client_;
    std::thread writer_, follower_, keeper_;
    std::atomic<bool> close_called_{false};
    Notifier notifier_;
};

}  // namespace libddp
