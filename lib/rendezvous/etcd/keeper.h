// The thread of a participant that keeps its lease, buries the dead and makes snapshots.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "rendezvous/etcd/participant.h"

namespace libddp {

class EtcdKeeper {
public:
    // Takes a lease. Throws as EtcdClient.
    EtcdKeeper(EtcdParticipant& participant, const Deadline& deadline);
    EtcdKeeper(const EtcdKeeper&) = delete;
    EtcdKeeper& operator=(const EtcdKeeper&) = delete;

    // Makes this participant known, on the thread that opens the store. The first one finds what an
    // earlier job has left, and removes it.
    void announce(const Deadline& deadline);
    // While that thread loads what is there.
    void keep_lease();
    // cut_watch: the follower's watch has been forgotten.
    void start(std::function<void()> cut_watch);
    // With the participant's mutex held: the replica has changed, or the participant is closed or
    // lost.
    void look();
    void end_calls() { client_.end(); }
    void join();
    // The last participant takes everything along. If etcd does not answer in time, the lease
    // expires, and the others see to the rest.
    void leave();
    // Store::alive_until_ms.
    std::int64_t alive_until_ms() const;

private:
    bool renew_lease();
    void keep();
    void beat();
    void look_for_stale_watch();
    void bury_the_dead();
    void make_snapshot();
    void remove_logged(const std::vector<EtcdReplica::Logged>& logged);
    Deadline third_of_lease() const {
        return Deadline::after_ms(participant_.address.ttl_s * 1000 / 3);
    }

    EtcdParticipant& participant_;
    EtcdClient client_;
    std::int64_t lease_ = 0;
    std::atomic<std::int64_t>
        // boot_ms before the request was sent that etcd has answered last with a lease
        renewed_ms_;
    std::function<void()> cut_watch_;
    Condition wake_;
    bool attend_ DDP_GUARDED_BY(participant_.mutex) = false;
    std::set<std::uint64_t> tried_to_bury_;
    Deadline::Clock::time_point next_beat_, last_answer_;
    std::thread thread_;
};

}  // namespace libddp
