// The server's waits: who waits for which key, and until when. A change wakes exactly the requests
// that wait for it; nothing is polled. No sockets and no clock of its own: the time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "rendezvous/store_state.h"

namespace libddp {

class WaitList {
public:
    using Time = std::chrono::steady_clock::time_point;
    // Must not call back into the list.
    using Reply = std::function<void(Caller, const Outcome&)>;

    explicit WaitList(Reply reply, std::size_t max_bytes = limits::kTotal)
        : state_(max_bytes), reply_(std::move(reply)) {}

    // Answers now, or later when what it waits for has come or its time is over. False: the caller
    // already has a request with this number open, which only a broken client does.
    bool submit(Caller caller, Request request, Time now);
    // Forgets a request that still waits, without an answer.
    void cancel(Caller caller);
    // The client is gone: forgets its requests and runs its wills.
    void end_owner(std::uint64_t owner);

    // Answers the requests whose time is over.
    void expire(Time now);
    std::optional<Time> next_deadline() const;

    std::size_t waiting() const { return parked_.size(); }

private:
    struct Parked {
        Request request;
        std::string key;          // that it waits for
        std::size_t scanned = 0;  // keys before this one existed when last looked at
        std::size_t size = 0;     // what the state counts for it
        std::optional<Time> deadline;
    };
    using Entry = std::map<Caller, Parked>::iterator;

    bool look(Parked& parked) const;
    void park(Caller caller, Parked parked);
    Parked unpark(Entry entry);
    Parked end(Entry entry);  // and nobody parks it again
    void wake(const std::string& key);
    bool too_many(std::uint64_t owner) const;

    StoreState state_;
    Reply reply_;
    std::map<Caller, Parked> parked_;
    std::map<std::uint64_t, std::size_t> open_;     // parked requests of each owner
    std::map<std::string, std::set<Caller>> keys_;  // who waits for each
    std::set<std::pair<Time, Caller>> deadlines_;
};

}  // namespace libddp
