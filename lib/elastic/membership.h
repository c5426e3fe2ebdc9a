// Rosters: the lists of processes that train together while processes come and go. The store decides on each.
//
// A process that wants to be in the next roster writes a key of its meeting. A member of the roster before proposes the
// list of processes that came, as soon as all other members have come, are known to be gone, or have been waited for
// long enough. The store takes the first proposal, so there is one history, whatever the network does. A process that
// is not in the list was left behind, or waits for the roster after.
//
// Keys, below elastic/<job>/:
//     comers             how many processes have come
//     roster             the newest roster: its number and members
//     meet/<n>/<id>      a process wants to be in roster n; its steps, as Member has them
//     join/<n>           one of these was not in roster n - 1
//     leave/<n>          a member of roster n - 1 is about to leave
//     due/<n>            the step before which the members meet for roster n
//     group/<n>/         the group of roster n
//     gone/<id>          a process has died, ended or left
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/store.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp {

// How a process says that it has loaded so many steps from a checkpoint, and has never had the state of a job: a number
// below -1. loaded_steps() of that number gives the steps again, and -1 stays -1.
constexpr std::int64_t loaded_steps(std::int64_t steps) {
    return -2 - steps;
}

struct Member {
    std::string id;           // of one process, for as long as it stays
    std::int64_t steps = -1;  // of the job that it has applied, or loaded_steps; -1: it has come without a known state
    bool operator==(const Member&) const = default;
};

struct Roster {
    std::int64_t number = 0;  // counts from 1; 0: there was none
    std::int64_t fence =
        0;  // greater than that of every roster before, also of a job that met at the same store before
    // By rank: those who stay, in the order of their ranks before, and then those who join.
    std::vector<Member> members;
    std::int32_t rank = -1;         // of this process
    std::int32_t joined = 0;        // how many of the members were not in the roster before
    std::vector<std::string> left;  // who was

    // The ranks that have the state of the job, and after how many steps; -1: nobody has one. Loaded steps count if
    // nobody has it.
    std::vector<std::int32_t> donors() const;
    std::int64_t newest() const;
};

// A roster as the store has it: a line with its number and its fence, and one for each member.
struct RosterRecord {
    std::int64_t number = 0;  // 0: nothing has been decided
    std::int64_t fence = 0;
    std::vector<Member> members;
    std::string text;  // as the store has it

    std::string encode() const;
    static RosterRecord decode(std::string text);  // throws Error (INTERNAL)
};

struct MembershipOptions {
    std::int32_t min_world = 1;
    std::int32_t max_world = std::numeric_limits<std::int32_t>::max();  // who comes then waits until there is room
    // How long a meeting waits: the first one, and one when no member is left, for more than min_world; any other for a
    // member that neither comes nor is known to be gone.
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
    // steps: how many it has applied, or loaded_steps; -1: it needs the state of the others. late: called once if another
    // member does not come soon, though it is not known to be gone. Throws Error: RANK_FAILED if the others have gone on
    // without this process, TIMEOUT, INVALID_STATE after leave().
    const Roster& meet(std::int64_t steps, const std::function<void()>& late = {});
    const Roster& roster() const { return roster_; }
    // Throws INVALID_STATE after leave().
    void require_present() const;

    // Before what only a member of the newest roster may do: asks the store. Throws Error: RANK_FAILED (the others have gone on without
    // this process, or may have: the store has taken it for dead), UNAVAILABLE, TIMEOUT (the store does not say it within settle_ms and
    // timeout_ms), INTERRUPTED.
    void confirm();
    // The same after each step, within timeout_ms. Asks only if the others may have gone on since this process knew that they had not:
    // it has stood still for long, or the store may have taken it for dead.
    void confirm_if_in_doubt();

    // At the beginning of this step: whether the members meet, because somebody waits to join or is about to leave. All get the same
    // answer for a step, nearly always. One that does not see it in time meets an error of the group instead, as after a failure.
    // Throws Error if the connection to the store has ended: a rank alone has no group that would notice.
    bool is_due(std::int64_t step);

    // A member of the roster that has ended, as an error of its group; code DDP_OK: there is none.
    ErrorInfo lost_member() const;
    // Removes what only rosters before the last one needed, this member's share of it: a store does not grow with the number of rosters.
    void remove_old_keys() const;

    // This process will leave() at the step that is_due(), so that no step is lost.
    void announce_leave();
    // The others go on without this process. Waits for nobody.
    void leave();

private:
    using Plan = RosterRecord;

    std::string key(const std::string& what, std::int64_t roster) const;
    std::string gone_key(const std::string& id) const;
    std::string roster_key() const;
    Plan newest() const;
    Plan newest(Store& store) const;
    void enter(const Plan& before, std::int64_t steps);
    std::set<std::string> gone() const;
    std::vector<Member> arrivals(std::int64_t roster, const std::set<std::string>& gone) const;
    void propose(const Plan& before, const std::vector<Member>& came);
    Plan decide(const Plan& before, std::function<void()> late);
    void begin(const Plan& next);
    void confirm_within(std::int64_t ms);
    [[noreturn]] void left_behind(const Plan& now) const;
    void watch_requests();
    void forget_watches();

    const std::shared_ptr<Store> store_;
    const std::string prefix_;
    const MembershipOptions options_;
    const std::string id_;
    Roster roster_;
    std::vector<Member> before_;  // of the roster after which this process last entered a meeting
    bool left_ = false;
    std::int64_t seen_ms_ =
        0;  // boot_ms when no roster after this one was under way, or when the last step since then ended
    std::vector<Store::Watch> watches_;
    Store::Watch connection_ = 0;
    std::atomic<bool> cut_off_{false};
    std::atomic<bool> somebody_joins_{false}, somebody_leaves_{false};
    std::atomic<std::int64_t> due_at_{std::numeric_limits<std::int64_t>::max()};
};

}  // namespace libddp
