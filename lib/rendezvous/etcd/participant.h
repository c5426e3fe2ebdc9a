// A participant of a store on etcd: what its threads share. The writer, the follower and the keeper
// have their own beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/replica.h"
#include "util/error.h"
#include "util/mutex.h"

namespace libddp {

// Keys below the store's root (replica.h).
namespace etcd_keys {
inline constexpr const char* kWatched = "w/";
inline constexpr const char* kAlive = "w/alive/";
inline constexpr const char* kHead = "w/head";
inline constexpr const char* kSnapshots = "s/";
inline constexpr const char* kNewest = "last";
inline constexpr const char* kFence = "fence";
}  // namespace etcd_keys

// The value of a key below alive/: others are other versions of libddp.
inline constexpr const char* kEtcdStoreVersion = "libddp etcd store 2";

std::uint64_t random_number();

struct EtcdParticipant {
    // name: for messages. on_lost: with the mutex held, once.
    EtcdParticipant(const EtcdAddress& where, std::string called, std::function<void()> on_lost);

    std::string key(const std::string& rest) const { return root + rest; }
    EtcdRange below(const std::string& rest) const;
    // All that the store holds, but for its snapshots.
    EtcdRange contents() const;
    std::string alive_key() const {
        return key(etcd_keys::kWatched + EtcdReplica::alive_key(owner));
    }
    // The pieces of a snapshot.
    EtcdRange snapshot(std::uint64_t id) const;
    EtcdClient client() const { return {address, name, endpoint}; }
    // The store is lost when no endpoint answers for this long, or twice the lease: an election
    // takes some seconds.
    Deadline patience() const;
    std::int64_t patience_ms() const;
    // Why a participant whose lease has ended is lost.
    std::string was_silent() const;
    // The revision of the newest batch.
    std::int64_t newest_batch(EtcdClient& client, const Deadline& deadline) const;

    bool usable() const DDP_REQUIRES(mutex) { return !closed && !lost; }
    void check_usable() const DDP_REQUIRES(mutex);
    void lose(const std::string& reason);
    void lose_if_final(const Error& error);

    [[noreturn]] void no_answer(std::int64_t within_ms) const;
    [[noreturn]] void interrupted(const Request& request) const;

    const EtcdAddress address;
    const std::string name;
    const std::string root;
    const std::uint64_t owner;
    const std::shared_ptr<EtcdEndpoint> endpoint;
    const std::function<void()> on_lost;

    Mutex mutex;
    Condition changed;
    EtcdReplica replica DDP_GUARDED_BY(mutex);
    std::int64_t applied DDP_GUARDED_BY(mutex) = 0;  // revision that the replica stands for
    std::int64_t head_revision DDP_GUARDED_BY(mutex) = 0;
    std::int64_t joined_at DDP_GUARDED_BY(mutex) = 0;  // revision of its own key
    bool closed DDP_GUARDED_BY(mutex) = false;
    std::optional<ErrorInfo> lost DDP_GUARDED_BY(mutex);
};

}  // namespace libddp
