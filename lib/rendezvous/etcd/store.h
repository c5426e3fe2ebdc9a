// The store on etcd: participants write what they ask for as batches below one prefix, and each
// applies all batches, in etcd's order, to a replica of its own (replica.h). So every operation has
// the semantics of the other stores, and etcd does what it is good at: one order, durable, that
// survives the loss of servers.
//
// A participant has three threads: writer.h, follower.h and keeper.h. Threads that call only wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>
#include <string>

#include "rendezvous/etcd/follower.h"
#include "rendezvous/etcd/keeper.h"
#include "rendezvous/etcd/participant.h"
#include "rendezvous/etcd/writer.h"
#include "rendezvous/key_watches.h"
#include "rendezvous/store_engine.h"

namespace libddp {

class EtcdStore final : public StoreEngine {
public:
    // Joins. call_timeout_ms: the bound of calls that do not wait for others. Throws as EtcdClient.
    EtcdStore(const EtcdAddress& address, const std::string& name, std::int64_t call_timeout_ms,
              const Deadline& deadline);
    ~EtcdStore() override;

    Outcome perform(Request request, std::int64_t within_ms) override;
    Notifier::Id watch(const std::string& key, Notifier::Callback seen) override;
    Notifier::Id watch_connection(Notifier::Callback lost) override;
    void unwatch(Notifier::Id id) override;
    void close() override;
    std::int64_t notices_death_ms() const override;
    std::int64_t raise_fence(std::int64_t at_least) override;
    std::int64_t alive_until_ms() const override { return keeper_.alive_until_ms(); }

private:
    Outcome look(Lock& lock, const Request& request, const Deadline& bound, std::int64_t bound_ms)
        DDP_REQUIRES(participant_.mutex);
    void announce() DDP_REQUIRES(participant_.mutex);
    void end_threads() DDP_REQUIRES(participant_.mutex);
    void tell_loss() DDP_REQUIRES(participant_.mutex);

    const std::int64_t call_timeout_ms_;
    EtcdParticipant participant_;
    Notifier notifier_;
    KeyWatches watches_ DDP_GUARDED_BY(participant_.mutex){notifier_};
    std::set<Notifier::Id> connection_watches_ DDP_GUARDED_BY(participant_.mutex);
    EtcdWriter writer_;
    EtcdFollower follower_;
    EtcdKeeper keeper_;
    std::atomic<bool> close_called_{false};
};

}  // namespace libddp
