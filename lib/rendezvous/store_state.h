// The content of a store: keys, queues, barriers and last wills, within a memory limit. Pure and deterministic: no
// clock, no sockets, no threads. The tcp server has one behind its wait lists; each participant of a file store replays
// the same log into its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/protocol.h"

namespace libddp {

class StoreState {
public:
    explicit StoreState(std::size_t max_bytes = limits::kTotal) : max_bytes_(max_bytes) {}

    // Does what the request asks. nullopt: it has to wait (request.timeout_ms is not looked at). Then nothing has
    // changed, except that a barrier counts the caller from now until the barrier is complete or withdraw. A failure
    // changes nothing.
    std::optional<Outcome> apply(Caller caller, const Request& request);

    // Index of the first key at or after `from` that does not exist, or keys.size().
    std::size_t first_missing(const Strings& keys, std::size_t from = 0) const;
    bool queue_empty(const std::string& name) const { return queues_.find(name) == queues_.end(); }
    // Whether the caller's arrival at the barrier still waits for others.
    bool waits_at(const std::string& barrier, Caller caller) const;

    // Takes back a barrier arrival. Nothing happens if there is none.
    void withdraw(Caller caller);
    // The owner is gone: takes back its arrivals and runs its wills. Returns the keys that the wills created.
    Strings end_owner(std::uint64_t owner);
    // Owners that somebody has to end should they die: they have wills, or wait at a barrier.
    std::set<std::uint64_t> owners() const;

    // The failure of a wait that ended without success. waited_ms == kNoWait: it was not to wait at all.
    Outcome timed_out(const Request& request, std::int64_t waited_ms) const;

    std::size_t bytes() const { return bytes_; }
    // Memory of the caller's, which counts. The failure of a request for which there is none; then nothing has changed.
    std::optional<Outcome> hold(std::size_t bytes);
    void let_go(std::size_t bytes) { bytes_ -= bytes; }
    // Requests that rebuild this state when applied, in order, to an empty one.
    void snapshot(const std::function<void(Caller, const Request&)>& visit) const;

private:
    struct Barrier {
        std::int64_t count = 0;
        std::set<Caller> arrived;
    };

    Outcome set(const Request& request);
    Outcome compare_set(const Request& request);
    Outcome add(const Request& request);
    Outcome append(const Request& request);
    Outcome multi_set(const Request& request);
    Outcome remove(const Request& request);
    Outcome list_keys(const Request& request) const;
    Outcome queue_push(const Request& request);
    // The change of a key when its author is gone; with a condition only if that key then has that value.
    struct Will {
        std::string value;
        std::string holder_key;  // empty: no condition
        std::string holder;
    };
    static std::size_t size_of(const std::string& key, const Will& will);

    Outcome set_will(Caller caller, const Request& request);
    void remove_will(Caller caller, const Request& request);
    std::optional<Outcome> values_of(const Strings& keys) const;
    std::optional<Outcome> queue_pop(const Request& request);
    std::optional<Outcome> barrier(Caller caller, const Request& request);

    bool fits(std::size_t freed, std::size_t added) const { return bytes_ - freed + added <= max_bytes_; }
    Outcome full() const;
    Outcome store(const std::string& key, std::string value);
    std::size_t size_of(const std::string& key) const;

    std::size_t max_bytes_;
    std::size_t bytes_ = 0;
    std::map<std::string, std::string> keys_;
    std::map<std::string, std::deque<std::string>> queues_;  // none is empty
    std::map<std::string, Barrier> barriers_;                // none is complete
    std::map<std::uint64_t, std::map<std::string, Will>> wills_;
};

}  // namespace libddp
