// The thread of a participant that reads: it applies all batches, in etcd's order, to the
// participant's replica.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "rendezvous/etcd/participant.h"

namespace libddp {

class EtcdFollower {
public:
    // applied: of a request, with the participant's mutex held.
    EtcdFollower(EtcdParticipant& participant, EtcdReplica::Applied applied)
        : participant_(participant), client_(participant.client()), applied_(std::move(applied)) {}
    EtcdFollower(const EtcdFollower&) = delete;
    EtcdFollower& operator=(const EtcdFollower&) = delete;

    // Reads what is there, on the thread that opens the store. meanwhile: called now and then.
    void load(const Deadline& deadline, const std::function<void()>& meanwhile);
    // Follows what comes. news: the replica has changed, with the participant's mutex held.
    void start(std::function<void()> news);
    // Asks for the stream anew: a server that is cut off from the others keeps a watch open and
    // says nothing.
    void cut() { client_.cut(); }
    void end_calls() { client_.end(); }
    void join();

private:
    void load_at_one_revision(const Deadline& deadline, const std::function<void()>& meanwhile);
    void read_all(EtcdRange range, std::int64_t& revision, const Deadline& deadline,
                  const std::function<void()>& meanwhile,
                  const std::function<void(EtcdEntry)>& seen);
    void follow();
    void take_news(EtcdNews news);
    void skip_compacted(std::int64_t revision);

    EtcdParticipant& participant_;
    EtcdClient client_;
    const EtcdReplica::Applied applied_;
    std::function<void()> news_;
    std::thread thread_;
};

}  // namespace libddp
