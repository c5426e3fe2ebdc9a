// The watches of a store that has its state in this process.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "rendezvous/notifier.h"
#include "rendezvous/store_state.h"

namespace libddp {

// Under the store's lock.
class KeyWatches {
public:
    explicit KeyWatches(Notifier& notifier) : notifier_(notifier) {}

    Notifier::Id add(const std::string& key, Notifier::Callback seen) {
        const Notifier::Id id = notifier_.add(std::move(seen));
        keys_.emplace(id, key);
        return id;
    }
    // The notifier has to remove it, too, without the lock.
    void forget(Notifier::Id id) { keys_.erase(id); }
    // Fires the watches whose key exists.
    void look(const StoreState& state) {
        for (auto at = keys_.begin(); at != keys_.end();) {
            const std::string* value = state.find(at->second);
            if (value != nullptr) notifier_.fire(at->first, *value);
            at = value != nullptr ? keys_.erase(at) : std::next(at);
        }
    }

private:
    std::map<Notifier::Id, std::string> keys_;
    Notifier& notifier_;
};

}  // namespace libddp
