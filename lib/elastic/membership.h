// Who trains together, when processes come and go: rosters of members, one after another, on which the store decides.
//
// Whoever wants to be in the next roster writes a key of its meeting. A member of the roster before proposes the list of those who came,
// as soon as all the others have come or are known to be gone, or have been waited for long enough. The store takes the first proposal,
// so there is one history, whatever the network does. Who is not in the list was left behind, or waits for the roster after.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/store.h"
#include "util/deadline.h"

namespace libddp {

struct Member {
    std::string id;           // of one process, for as long as it stays
    std::int64_t steps = -1;  // of the job that it has applied; -1: it has come without a state
    bool operator==(const Member&) const = default;
};

struct Roster {
    std::int64_t number = 0;  // counts from 1; 0: there was none
    // By rank: those who stay, in the order of their ranks before, and then those who join.
    std::vector<Member> members;
    std::int32_t rank = -1;         // of this process
    std::int32_t joined = 0;        // how many of the members were not in the roster before
    std::vector<std::string> left;  // who was

    // The most that a member has applied; -1: no member has a state.
    std::int64_t newest() const;
};

struct MembershipOptions {
    std::int32_t min_world = 1;
    std::int32_t max_world = std::numeric_limits<std::int32_t>::max();  // who comes then waits until there is room
    // How long a meeting waits: the first one for more than min_world, a later one for a member that neither comes nor is known to be
    // gone.
    std::int64_t settle_ms = 30'000;
    std::int64_t timeout_ms = kDefaultTimeoutMs;  // how long there may be fewer than min_world
    // The first meeting does not wait for more than these.
    std::int32_t first_world = std::numeric_limits<std::int32_t>::max();
};

// One thread at a time uses it.
class Membership {
public:
    // job: the same for all; several jobs may share a store. Throws Error.
    Membership(std::shared_ptr<Store> store, const std::string& job, const MembershipOptions& options);
    // Without leave() the others take this process for dead.
    ~Membership();
    Membership(const Membership&) = delete;
    Membership& operator=(const Membership&) = delete;

    // Joins, or goes on after the group of the roster broke or is_due(). Waits until a roster begins of which this process is a member.
    // steps: how many it has applied; -1: it needs the state of the others. late: called once if another member does not come soon,
    // though it is not known to be gone. Throws Error: RANK_FAILED if the others have gone on without this process, TIMEOUT,
    // INVALID_STATE after leave().
    const Roster& meet(std::int64_t steps, const std::function<void()>& late = {});
    const Roster& roster() const { return roster_; }
    // Throws INVALID_STATE after leave().
    void require_present() const;

    // At the beginning of this step: whether the members meet, because somebody waits to join or is about to leave. All get the same
    // answer for a step, nearly always. One that does not see it in time meets an error of the group instead, as after a failure.
    bool is_due(std::int64_t step);

    // This process will leave() at the step that is_due(), so that no step is lost.
    void announce_leave();
    // The others go on without this process. Waits for nobody.
    void leave();

private:
    std::string key(const std::string& what, std::int64_t roster) const;
    std::string gone_key(const std::string& id) const;
    std::vector<Member> plan(std::int64_t roster, std::int64_t wait_ms) const;
    std::int64_t latest() const;
    void enter(std::int64_t roster, std::int64_t steps);
    std::vector<Member> arrivals(std::int64_t roster) const;
    void propose(std::int64_t roster, const std::vector<Member>& before, const std::vector<Member>& came);
    std::vector<Member> decide(std::int64_t roster, const Deadline& deadline, std::function<void()> late);
    void begin(std::int64_t roster, const std::vector<Member>& before, const std::vector<Member>& members);
    void watch_requests();
    void forget_watches();

    const std::shared_ptr<Store> store_;
    const std::string prefix_;
    const MembershipOptions options_;
    const std::string id_;
    Roster roster_;
    bool left_ = false;
    std::vector<Store::Watch> watches_;
    std::atomic<bool> somebody_joins_{false}, somebody_leaves_{false};
    std::atomic<std::int64_t> due_at_{std::numeric_limits<std::int64_t>::max()};
};

}  // namespace libddp
