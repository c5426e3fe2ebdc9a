// The content of a store: keys and last wills, within a memory limit. Pure and deterministic: no
// clock, no sockets, no threads. The tcp server has one behind its wait lists; each participant of
// a file store replays the same log into its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/protocol.h"

namespace libddp {

class StoreState {
public:
    explicit StoreState(std::size_t max_bytes = limits::kTotal) : max_bytes_(max_bytes) {}

    // Does what a request of this connection or participant asks. nullopt: it has to wait
    // (request.timeout_ms is not looked at). Then, and after a failure, nothing has changed.
    std::optional<Outcome> apply(std::uint64_t owner, const Request& request);

    // nullptr: the key does not exist. Good until the next change.
    const std::string* find(const std::string& key) const;
    // Index of the first key at or after `from` that does not exist, or keys.size().
    std::size_t first_missing(const Strings& keys, std::size_t from = 0) const;

    // The owner is gone: runs its wills. Returns the keys that they created.
    Strings end_owner(std::uint64_t owner);
    // Owners of wills, which somebody has to end should they die.
    std::set<std::uint64_t> owners() const;

    // The failure of a wait for keys that ended without success. waited_ms == kNoWait: it was not
    // to wait at all.
    Outcome timed_out(const Request& request, std::int64_t waited_ms) const;

    std::size_t bytes() const { return bytes_; }
    // Memory of the caller's, which counts. The failure of a request for which there is none; then
    // nothing has changed.
    std::optional<Outcome> hold(std::size_t bytes);
    void let_go(std::size_t bytes) { bytes_ -= bytes; }
    // Requests that rebuild this state when applied, in order, to an empty one.
    void snapshot(const std::function<void(std::uint64_t, const Request&)>& visit) const;

private:
    // The change of a key when its author is gone; with a condition only if that key then has that
    // value.
    struct Will {
        std::string value;
        std::string holder_key;  // empty: no condition
        std::string holder;
    };
    static std::size_t size_of(const std::string& key, const Will& will);

    Outcome compare_set(const Request& request);
    Outcome add(const Request& request);
    Outcome remove(const std::string& key);
    Outcome list_keys(const std::string& prefix) const;
    Outcome set_will(std::uint64_t owner, const Request& request);
    void remove_will(std::uint64_t owner, const std::string& key);

    bool fits(std::size_t freed, std::size_t added) const {
        return bytes_ - freed + added <= max_bytes_;
    }
    Outcome full() const;
    Outcome store(const std::string& key, std::string value);

    std::size_t max_bytes_;
    std::size_t bytes_ = 0;
    std::map<std::string, std::string> keys_;
    std::map<std::uint64_t, std::map<std::string, Will>> wills_;
};

}  // namespace libddp
