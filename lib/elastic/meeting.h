// A meeting: processes that want to be in the next roster wait for each other, and the store
// decides on it.
//
// A member of the roster before proposes the list of processes that came, as soon as all other
// members have come, are known to be gone, or have been waited for long enough. If no member is
// left, those who came propose it. The store takes the first proposal, so there is one history,
// whatever the network does. A process that is not in the list was left behind, or waits for the
// roster after.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "elastic/roster.h"
#include "rendezvous/store.h"
#include "util/deadline.h"
#include "util/mutex.h"

namespace libddp {

struct MembershipOptions {
    std::int32_t min_world = 1;
    // who comes then waits until there is room
    std::int32_t max_world = std::numeric_limits<std::int32_t>::max();
    // How long a meeting waits: the first one, and one when no member is left, for more than
    // min_world; any other for a member that neither comes nor is known to be gone.
    std::int64_t settle_ms = 30'000;
    std::int64_t timeout_ms = kDefaultTimeoutMs;  // how long there may be fewer than min_world
    // The first meeting does not wait for more than these.
    std::int32_t first_world = std::numeric_limits<std::int32_t>::max();
};

class Meeting {
public:
    // For the roster after `before`. id: of this process. Everything that is passed stays while
    // this object lives.
    Meeting(Store& store, const JobKeys& keys, const MembershipOptions& options,
            const std::string& id, const RosterRecord& before);
    ~Meeting();
    Meeting(const Meeting&) = delete;
    Meeting& operator=(const Meeting&) = delete;

    // This process wants to be in the roster. joins: it is in none yet.
    void enter(std::int64_t steps, bool joins);
    // Waits for the roster, and returns it or a later one. late: as for Membership::meet().
    RosterRecord decide(std::function<void()> late);

private:
    // The answers of the store.
    struct Look {
        RosterRecord newest;
        std::set<std::string> gone;
        std::vector<std::string> came;  // and are not gone, in the order of coming
        // how many have come that were not in the roster before, if that is asked for
        std::int64_t comers = 0;
    };

    Look look() const;
    RosterRecord propose(const std::vector<std::string>& came);
    void wake_at(const std::string& key);
    void wait(std::int64_t ms);

    Store& store_;
    const JobKeys& keys_;
    const MembershipOptions& options_;
    const std::string& id_;
    const RosterRecord& before_;
    const std::int64_t number_;
    bool counts_comers_ = false;
    std::map<std::string, Store::Watch> watches_;  // by key; the connection's has none
    Mutex mutex_;
    Condition changed_;
    bool news_ DDP_GUARDED_BY(mutex_) = false;  // since the last look
};

}  // namespace libddp
