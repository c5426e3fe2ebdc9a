#include "elastic/membership.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iomanip>
#include <set>

#include "elastic/keys.h"
#include "launch/environment.h"
#include "util/boot_clock.h"
#include "util/deadline.h"
#include "util/hash.h"
#include "util/host.h"
#include "util/interrupt.h"
#include "util/text.h"

namespace libddp {
namespace {

// How often a process asks whether a store with leases counts it among the living.
constexpr std::chrono::milliseconds kBeat{5};
// So many rosters before this one are still in the store, with the ends of their members: a launcher
// that is late must see that one has left politely.
constexpr std::int64_t kKeptRosters = 4;
// How long ~Membership() tries to tell the others.
constexpr std::int64_t kFarewellMs = 1000;
// Steps that take a longer part of settle_ms are confirmed by the store.
constexpr std::int64_t kStepsInSettling = 4;
// In how many steps the members meet after rank 0 has seen that they should: until then the others
// have heard of it.
constexpr std::int64_t kStepsAhead = 2;

std::string launch_pid() {
    const auto launched = process_env(elastic_keys::kLaunchPid);
    const bool known = launched && launched->find_first_not_of("0123456789") == std::string::npos;
    return known && !launched->empty() ? *launched : std::to_string(getpid());
}

// The same for ranks of one host, as far as that can be told.
std::uint64_t host_number() {
    try {
        return Hash().add(host_id()).value();
    } catch (const Error&) {
        return Hash().add(host_name()).value();
    }
}

// A number first, so that ids sort in the order of coming.
std::string make_id(Store& store, const std::string& key) {
    TextOut id;
    id << std::setw(12) << std::setfill('0') << store.add(key, 1) << '-' << std::hex
       << host_number() << '-' << host_name() << '-' << launch_pid();
    return id.str();
}

}  // namespace

Membership::Membership(std::shared_ptr<Store> store, const std::string& job,
                       const MembershipOptions& options)
    : store_(std::move(store)),
      keys_{elastic_keys::kJobs + job + "/"},
      options_(options),
      id_(make_id(*store_, keys_.prefix + "comers")) {
    if (options.min_world < 1 || options.max_world < options.min_world)
        fail(DDP_ERROR_INVALID_ARGUMENT, "min_world is ", options.min_world, " and max_world ",
             options.max_world,
             "; the first is at least 1 and at most the second. Where an option is 0, ddprun's "
             "counts");
    if (job.find('/') != std::string::npos)
        fail(DDP_ERROR_INVALID_ARGUMENT, "the name of the job is '", job,
             "'; it must not hold a '/'");
    store_->set_will(keys_.gone(id_), elastic_keys::kDied);
    connection_ = store_->watch_connection([this](const std::string&, bool) { cut_off_ = true; });
}

Membership::~Membership() {
    forget_watches();
    store_->unwatch(connection_);
    if (left_) return;
    try {
        const auto store = store_->bounded(kFarewellMs);
        store->set(keys_.gone(id_), elastic_keys::kEnded);
        store->remove_will(keys_.gone(id_));
    } catch (const std::exception&) {  // the store's will says so
    }
}

const Roster& Membership::meet(std::int64_t steps, const std::function<void()>& late) {
    require_present();
    forget_watches();
    const bool member = roster_.number > 0;
    for (;;) {
        seen_ms_ = boot_ms();
        const RosterRecord before = newest_roster(*store_, keys_);
        if (before.number != roster_.number) {
            // an earlier wait for this roster did not end well
            if (is_among(before.members, id_)) {
                begin(before);
                return roster_;
            }
            if (member) left_behind(before);
        }
        before_ = before.members;
        Meeting meeting(*store_, keys_, options_, id_, before);
        meeting.enter(steps, !member);
        const RosterRecord next = meeting.decide(late);
        if (is_among(next.members, id_)) {
            begin(next);
            return roster_;
        }
        if (member) left_behind(next);
    }
}

void Membership::left_behind(const RosterRecord& now) const {
    fail(DDP_ERROR_RANK_FAILED, "the others have gone on without this rank, in roster ", now.number,
         " with ", now.members.size(), " ranks, because it did not answer within ",
         options_.settle_ms, " ms; it may join again, and gets their state");
}

void Membership::begin(const RosterRecord& next) {
    Roster roster;
    store_->raise_fence(next.fence);
    roster.number = next.number;
    roster.fence = next.fence;
    roster.members = next.members;
    for (std::size_t rank = 0; rank < roster.members.size(); ++rank) {
        if (roster.members[rank].id == id_) roster.rank = static_cast<std::int32_t>(rank);
        if (!is_among(before_, roster.members[rank].id))
            ++roster.joined;
        else if (roster.members[rank].id == id_)
            roster.stayed = true;
    }
    for (const Member& member : before_)
        if (!is_among(roster.members, member.id)) roster.left.push_back(member.id);
    roster_ = std::move(roster);
    watch_requests();
}

void Membership::confirm() {
    confirm_within(std::min(options_.settle_ms, options_.timeout_ms));
}

void Membership::confirm_within(std::int64_t ms) {
    const Deadline deadline = Deadline::after_ms(ms);
    const std::int64_t asked_ms = boot_ms();
    const auto store = store_->bounded(std::max<std::int64_t>(ms, 1));
    const RosterRecord now = newest_roster(*store, keys_);
    if (now.number != roster_.number) left_behind(now);
    if (store->check({keys_.gone(id_)}))
        fail(DDP_ERROR_RANK_FAILED,
             "the store has taken this rank for dead, so the others go on without it");
    // A store with leases says with the next beat whether this process has lived all the time.
    while (boot_ms() >= store_->alive_until_ms()) {
        if (deadline.expired())
            fail(DDP_ERROR_TIMEOUT, "the store did not confirm within ", ms,
                 " ms that it counts this rank among the living");
        if (!interrupt::sleep(kBeat, deadline))
            fail(DDP_ERROR_INTERRUPTED, "the wait for the store to confirm roster ", roster_.number,
                 " was interrupted");
        store->check({keys_.roster()});  // says whether it is lost
    }
    seen_ms_ = asked_ms;
}

// The others decide on a roster without this process after they have waited for settle_ms, or when
// the store takes it for dead. A rank that waits takes part in no collective, so this process
// finishes at most one step after the wait has begun. The wait then lies within the last three
// steps of this process, and one of them was long.
void Membership::confirm_if_in_doubt() {
    const std::int64_t now_ms = boot_ms();
    if (now_ms - seen_ms_ < options_.settle_ms / kStepsInSettling &&
        now_ms < store_->alive_until_ms())
        seen_ms_ = now_ms;
    else
        confirm_within(options_.timeout_ms);
}

ErrorInfo Membership::lost_member() const {
    if (newest_roster(*store_, keys_).number > roster_.number)
        return {DDP_ERROR_ABORTED, str("the others have gone on from roster ", roster_.number), -1};
    const Store::Keys gone = store_->list_keys(keys_.gone(""));
    const auto is_gone = [&](const Member& member) {
        return std::find(gone.begin(), gone.end(), keys_.gone(member.id)) != gone.end();
    };
    for (std::size_t rank = 0; rank < roster_.members.size(); ++rank)
        if (is_gone(roster_.members[rank]))
            return {DDP_ERROR_RANK_FAILED,
                    str("rank ", rank, " of roster ", roster_.number, " (",
                        roster_.members[rank].id, ") has ended before it joined the group"),
                    static_cast<std::int32_t>(rank)};
    return {};
}

// Keys of the newest rosters stay: a member may not know yet that the one before has ended.
void Membership::remove_old_keys() const {
    static const std::set<std::string> kOfRosters{"came", "decided", "due", "group",
                                                  "join", "leave",   "meet"};
    std::set<std::string> needed;  // whose end somebody may ask for
    for (const Member& member : roster_.members) needed.insert(member.id);
    Store::Keys old, ends;
    for (const std::string& key : store_->list_keys(keys_.prefix)) {
        const std::size_t word = key.find('/', keys_.prefix.size());
        if (word == std::string::npos) continue;
        const std::string what = key.substr(keys_.prefix.size(), word - keys_.prefix.size());
        const std::size_t end = std::min(key.find('/', word + 1), key.size());
        const std::string name = key.substr(word + 1, end - word - 1);
        if (what == elastic_keys::kGone) ends.push_back(key);
        std::int64_t number = 0;
        if (!kOfRosters.contains(what) || !read_number(name, number)) continue;
        if (number < roster_.number - kKeptRosters)
            old.push_back(key);
        else if (what == "meet" && end < key.size())
            needed.insert(key.substr(end + 1));
    }
    for (const std::string& key : ends)
        if (!needed.contains(key.substr(keys_.gone("").size()))) old.push_back(key);
    // Each member removes its share.
    const auto world = roster_.members.size();
    for (std::size_t i = static_cast<std::size_t>(roster_.rank); i < old.size(); i += world)
        store_->remove(old[i]);
}

void Membership::watch_requests() {
    somebody_joins_ = somebody_leaves_ = false;
    due_at_ = std::numeric_limits<std::int64_t>::max();
    const std::int64_t next = roster_.number + 1;
    watches_.push_back(store_->watch(keys_.of("join", next),
                                     [this](const std::string&) { somebody_joins_ = true; }));
    watches_.push_back(store_->watch(keys_.of("leave", next),
                                     [this](const std::string&) { somebody_leaves_ = true; }));
    watches_.push_back(store_->watch(keys_.of("due", next), [this](const std::string& at) {
        std::int64_t step = 0;
        std::from_chars(at.data(), at.data() + at.size(), step);
        due_at_ = step;
    }));
}

void Membership::forget_watches() {
    for (const Store::Watch watch : watches_) store_->unwatch(watch);
    watches_.clear();
}

bool Membership::is_due(std::int64_t step) {
    if (cut_off_) store_->check({keys_.roster()});  // says why
    const bool room = static_cast<std::int64_t>(roster_.members.size()) < options_.max_world;
    const bool wanted = somebody_leaves_ || (somebody_joins_ && room);
    if (wanted && roster_.rank == 0 && due_at_ == std::numeric_limits<std::int64_t>::max()) {
        const std::int64_t at = step + kStepsAhead;
        store_->set(keys_.of("due", roster_.number + 1), std::to_string(at));
        due_at_ = at;
    }
    return step >= due_at_;
}

void Membership::require_present() const {
    if (left_)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "this rank has left the job; create another to join it again");
}

void Membership::announce_leave() {
    store_->set(keys_.of("leave", roster_.number + 1), id_);
}

void Membership::leave() {
    if (left_) return;
    forget_watches();
    store_->set(keys_.gone(id_), elastic_keys::kLeft);
    left_ = true;
    store_->remove_will(keys_.gone(id_));
    announce_leave();
}

}  // namespace libddp
