// The membership of this process in an elastic job: which roster it is in, whether it still is, and
// when the next one is due.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "elastic/meeting.h"
#include "elastic/roster.h"
#include "rendezvous/store.h"
#include "util/error.h"

namespace libddp {

// One thread at a time uses it.
class Membership {
public:
    // job: the same for all; several jobs may share a store. Throws Error.
    Membership(std::shared_ptr<Store> store, const std::string& job,
               const MembershipOptions& options);
    // Without leave() the others take this process for dead.
    ~Membership();
    Membership(const Membership&) = delete;
    Membership& operator=(const Membership&) = delete;

    // Joins, or goes on after the group of the roster broke or is_due(). Waits until a roster
    // begins of which this process is a member. steps: how many it has applied, or loaded_steps;
    // -1: it needs the state of the others. late: called once if another member does not come soon,
    // though it is not known to be gone. Throws Error: RANK_FAILED if the others have gone on
    // without this process, TIMEOUT, INVALID_STATE after leave().
    const Roster& meet(std::int64_t steps, const std::function<void()>& late = {});
    const Roster& roster() const { return roster_; }
    // Throws INVALID_STATE after leave().
    void require_present() const;

    // Before what only a member of the newest roster may do: asks the store. Throws Error:
    // RANK_FAILED (the others have gone on without this process, or may have: the store has taken
    // it for dead), UNAVAILABLE, TIMEOUT (the store does not say it within settle_ms and
    // timeout_ms), INTERRUPTED.
    void confirm();
    // The same after each step, within timeout_ms. Asks only if the others may have gone on since
    // this process knew that they had not: it has stood still for long, or the store may have taken
    // it for dead.
    void confirm_if_in_doubt();

    // At the beginning of this step: whether the members meet, because somebody waits to join or is
    // about to leave. All get the same answer for a step, nearly always. One that does not see it
    // in time meets an error of the group instead, as after a failure. Throws Error if the
    // connection to the store has ended: a rank alone has no group that would notice.
    bool is_due(std::int64_t step);

    // A member of the roster that has ended, as an error of its group; code DDP_OK: there is none.
    ErrorInfo lost_member() const;
    // Removes what only rosters before the last one needed, this member's share of it: a store does
    // not grow with the number of rosters.
    void remove_old_keys() const;

    // This process will leave() at the step that is_due(), so that no step is lost.
    void announce_leave();
    // The others go on without this process. Waits for nobody.
    void leave();

private:
    void begin(const RosterRecord& next);
    void confirm_within(std::int64_t ms);
    [[noreturn]] void left_behind(const RosterRecord& now) const;
    void watch_requests();
    void forget_watches();

    const std::shared_ptr<Store> store_;
    const JobKeys keys_;
    const MembershipOptions options_;
    const std::string id_;
    Roster roster_;
    std::vector<Member> before_;  // of the roster after which this process last entered a meeting
    bool left_ = false;
    // boot_ms when no roster after this one was under way, or when the last step since then ended
    std::int64_t seen_ms_ = 0;
    std::vector<Store::Watch> watches_;
    Store::Watch connection_ = 0;
    std::atomic<bool> cut_off_{false};
    std::atomic<bool> somebody_joins_{false}, somebody_leaves_{false};
    std::atomic<std::int64_t> due_at_{std::numeric_limits<std::int64_t>::max()};
};

}  // namespace libddp
