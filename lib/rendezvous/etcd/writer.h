// The thread of a participant that writes: requests that change something, as batches.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "rendezvous/etcd/participant.h"

namespace libddp {

// All but the constructor, start, end_calls and join: with the participant's mutex held.
class EtcdWriter {
public:
    explicit EtcdWriter(EtcdParticipant& participant)
        : participant_(participant), client_(participant.client()) {}
    EtcdWriter(const EtcdWriter&) = delete;
    EtcdWriter& operator=(const EtcdWriter&) = delete;

    void start();
    // Writes a request and waits until it has been applied here.
    Outcome carry_out(Lock& lock, Request request, const Deadline& bound, std::int64_t bound_ms);
    // Waits until the replica has all that was acknowledged before the call. request: for messages.
    void synchronise(Lock& lock, const Request& request, const Deadline& bound,
                     std::int64_t bound_ms);
    // A request has been applied here: one of this participant's has its outcome.
    void answer(Caller caller, std::optional<Outcome> outcome);
    // The participant is closed or lost.
    void drop();
    void end_calls() { client_.end(); }
    void join();

private:
    struct Entry {
        std::uint64_t id = 0;
        std::string bytes;
        std::optional<Outcome> outcome;  // none: it has not been applied here yet
    };
    using Entries = std::deque<std::shared_ptr<Entry>>;

    void write();
    bool write_next(Lock& lock) DDP_REQUIRES(participant_.mutex);
    Entries take_batch() DDP_REQUIRES(participant_.mutex);
    void refuse(const Entries& entries, const std::string& why) DDP_REQUIRES(participant_.mutex);
    std::int64_t write_batch(Entries& entries);
    std::int64_t commit_piece(std::uint64_t batch, std::uint64_t piece, std::string value);

    EtcdParticipant& participant_;
    EtcdClient client_;
    Condition wake_;
    Entries outgoing_ DDP_GUARDED_BY(participant_.mutex);
    std::map<std::uint64_t, std::shared_ptr<Entry>> in_flight_ DDP_GUARDED_BY(participant_.mutex);
    std::uint64_t next_request_ DDP_GUARDED_BY(participant_.mutex) = 1;
    std::uint64_t syncs_asked_ DDP_GUARDED_BY(participant_.mutex) = 0;
    std::uint64_t syncs_done_ DDP_GUARDED_BY(participant_.mutex) = 0;
    std::int64_t sync_revision_ DDP_GUARDED_BY(participant_.mutex) = 0;
    std::uint64_t next_batch_ = 1;  // of the thread's own
    std::thread thread_;
};

}  // namespace libddp
