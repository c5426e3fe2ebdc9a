#include "elastic/membership.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <sstream>

#include "elastic/keys.h"
#include "rendezvous/environment.h"
#include "util/error.h"
#include "util/host.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

// How often a meeting looks who has come. One who waits for a place may wait for hours.
constexpr std::int64_t kLookMs = 5;
constexpr std::int64_t kLookForPlaceMs = 100;
// Members who meet come nearly at once, unless they still believe in the last roster.
constexpr std::int64_t kSoonMs = 50;
// In how many steps the members meet after rank 0 has seen that they should: until then the others have heard of it.
constexpr std::int64_t kStepsAhead = 2;

std::string launch_pid() {
    const auto launched = process_env(elastic_keys::kLaunchPid);
    const bool known = launched && launched->find_first_not_of("0123456789") == std::string::npos;
    return known && !launched->empty() ? *launched : std::to_string(getpid());
}

// A number first, so that ids sort in the order of coming.
std::string make_id(Store& store, const std::string& key) {
    std::ostringstream id;
    id << std::setw(12) << std::setfill('0') << store.add(key, 1) << '-' << host_name() << '-' << launch_pid();
    return id.str();
}

std::int64_t number_in(std::string_view text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
        fail(DDP_ERROR_INTERNAL, "'", text, "' in the store is no number");
    return number;
}

std::string encode(const std::vector<Member>& members) {
    std::ostringstream text;
    for (const Member& member : members) text << member.id << ' ' << member.steps << '\n';
    return text.str();
}

std::vector<Member> decode(const std::string& text) {
    std::istringstream lines(text);
    std::vector<Member> members;
    for (Member member; lines >> member.id >> member.steps;) members.push_back(member);
    return members;
}

bool exists(Store& store, const std::string& key) {
    return store.check({key});
}

bool is_among(const std::vector<Member>& members, const std::string& id) {
    return std::any_of(members.begin(), members.end(), [&](const Member& member) { return member.id == id; });
}

}  // namespace

std::int64_t Roster::newest() const {
    std::int64_t newest = -1;
    for (const Member& member : members) newest = std::max(newest, member.steps);
    return newest;
}

Membership::Membership(std::shared_ptr<Store> store, const std::string& job, const MembershipOptions& options)
    : store_(std::move(store)),
      prefix_(elastic_keys::kJobs + job + "/"),
      options_(options),
      id_(make_id(*store_, prefix_ + "comers")) {
    if (options.min_world < 1 || options.max_world < options.min_world)
        fail(DDP_ERROR_INVALID_ARGUMENT, "min_world is ", options.min_world, " and max_world ", options.max_world,
             "; the first is at least 1 and at most the second");
    store_->set_will(gone_key(id_), elastic_keys::kDied);
}

Membership::~Membership() {
    forget_watches();
    if (left_) return;
    try {
        store_->set(gone_key(id_), elastic_keys::kEnded);
    } catch (const std::exception&) {  // the store's will says so
    }
}

std::string Membership::key(const std::string& what, std::int64_t roster) const {
    return prefix_ + what + "/" + std::to_string(roster);
}

std::string Membership::gone_key(const std::string& id) const {
    return prefix_ + elastic_keys::kGone + "/" + id;
}

// Empty if it is not decided within this time.
std::vector<Member> Membership::plan(std::int64_t roster, std::int64_t wait_ms) const {
    if (roster < 1) return {};
    try {
        return decode(store_->get(key(elastic_keys::kPlan, roster), wait_ms));
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT && error.info().code != DDP_ERROR_NOT_FOUND) throw;
        return {};
    }
}

// A roster that has begun; there may be a newer one.
std::int64_t Membership::latest() const {
    const std::string key = prefix_ + "latest";
    return exists(*store_, key) ? number_in(store_->get(key)) : 0;
}

void Membership::enter(std::int64_t roster, std::int64_t steps) {
    store_->set(key("meet", roster) + "/" + id_, std::to_string(steps));
    if (roster_.number + 1 != roster || roster_.number == 0) store_->set(key("join", roster), id_);
}

std::vector<Member> Membership::arrivals(std::int64_t roster) const {
    const std::string folder = key("meet", roster) + "/";
    Store::Keys keys = store_->list_keys(folder);
    std::sort(keys.begin(), keys.end());
    std::vector<Member> came;
    for (const std::string& key : keys) {
        const std::string id = key.substr(folder.size());
        if (!exists(*store_, gone_key(id))) came.push_back({id, number_in(store_->get(key))});
    }
    return came;
}

void Membership::propose(std::int64_t roster, const std::vector<Member>& before, const std::vector<Member>& came) {
    std::vector<Member> members;
    for (const Member& member : before)
        for (const Member& one : came)
            if (one.id == member.id) members.push_back(one);
    for (const Member& one : came)
        if (!is_among(before, one.id)) members.push_back(one);
    if (members.size() > static_cast<std::size_t>(options_.max_world))
        members.resize(static_cast<std::size_t>(options_.max_world));
    store_->compare_set(key(elastic_keys::kPlan, roster), "", encode(members));
}

// Waits for the members of this roster. Empty: it has others, and this process is not among those of the roster before.
std::vector<Member> Membership::decide(std::int64_t roster, const Deadline& deadline, std::function<void()> late) {
    const std::vector<Member> before = plan(roster - 1, -1);
    const bool was_in = is_among(before, id_);
    Deadline settled = Deadline::after_ms(options_.settle_ms);
    const Deadline soon = Deadline::after_ms(kSoonMs);
    bool enough = false;
    for (;;) {
        // The short waits of the store begin and end without asking.
        if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "the wait for roster ", roster, " was interrupted");
        const std::vector<Member> members = plan(roster, was_in || before.empty() ? kLookMs : kLookForPlaceMs);
        if (!members.empty()) return members;
        const std::vector<Member> came = arrivals(roster);
        const auto missing = std::count_if(before.begin(), before.end(), [&](const Member& member) {
            return !is_among(came, member.id) && !exists(*store_, gone_key(member.id));
        });
        const bool all_gone = std::none_of(before.begin(), before.end(), [&](const Member& member) {
            return is_among(came, member.id) || !exists(*store_, gone_key(member.id));
        });
        const auto count = static_cast<std::int64_t>(came.size());
        if (late && was_in && missing > 0 && soon.expired()) std::exchange(late, nullptr)();
        // Where nobody is left to be waited for, it is those who come that are.
        const bool anew = before.empty() || all_gone;
        if (!enough && count >= options_.min_world && anew) settled = Deadline::after_ms(options_.settle_ms);
        enough = count >= options_.min_world;
        const bool complete = anew ? count >= std::min(options_.max_world, options_.first_world) : missing == 0;
        if (enough && (was_in || anew) && (complete || settled.expired())) {
            propose(roster, before, came);
        } else if (deadline.expired() && (was_in || anew)) {
            fail(DDP_ERROR_TIMEOUT, "roster ", roster, " did not begin within ", options_.timeout_ms, " ms: ", count,
                 " processes have come, and min_world is ", options_.min_world);
        }
    }
}

const Roster& Membership::meet(std::int64_t steps, const std::function<void()>& late) {
    require_present();
    forget_watches();
    const Deadline deadline = Deadline::after_ms(options_.timeout_ms);
    const bool member = roster_.number > 0;
    for (std::int64_t roster = member ? roster_.number + 1 : latest() + 1;; ++roster) {
        enter(roster, steps);
        const std::vector<Member> before = plan(roster - 1, -1);
        const std::vector<Member> members = decide(roster, deadline, late);
        if (is_among(members, id_)) {
            begin(roster, before, members);
            return roster_;
        }
        if (member)
            fail(DDP_ERROR_RANK_FAILED, "the others have gone on without this rank, in roster ", roster, " with ",
                 members.size(), " ranks, because it did not answer within ", options_.settle_ms,
                 " ms; it may join again, and gets their state");
    }
}

void Membership::begin(std::int64_t roster, const std::vector<Member>& before, const std::vector<Member>& members) {
    // Who comes later begins its search here. A number that is too low does no harm.
    store_->set(prefix_ + "latest", std::to_string(roster));
    Roster next;
    next.number = roster;
    next.members = members;
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
        if (members[rank].id == id_) next.rank = static_cast<std::int32_t>(rank);
        if (!is_among(before, members[rank].id)) ++next.joined;
    }
    for (const Member& member : before)
        if (!is_among(members, member.id)) next.left.push_back(member.id);
    roster_ = std::move(next);
    watch_requests();
}

void Membership::watch_requests() {
    somebody_joins_ = somebody_leaves_ = false;
    due_at_ = std::numeric_limits<std::int64_t>::max();
    const std::int64_t next = roster_.number + 1;
    watches_.push_back(store_->watch(key("join", next), [this](const std::string&) { somebody_joins_ = true; }));
    watches_.push_back(store_->watch(key("leave", next), [this](const std::string&) { somebody_leaves_ = true; }));
    watches_.push_back(store_->watch(key("due", next), [this](const std::string& at) {
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
    const bool room = static_cast<std::int64_t>(roster_.members.size()) < options_.max_world;
    const bool wanted = somebody_leaves_ || (somebody_joins_ && room);
    if (wanted && roster_.rank == 0 && due_at_ == std::numeric_limits<std::int64_t>::max()) {
        const std::int64_t at = step + kStepsAhead;
        store_->set(key("due", roster_.number + 1), std::to_string(at));
        due_at_ = at;
    }
    return step >= due_at_;
}

void Membership::require_present() const {
    if (left_) fail_call(DDP_ERROR_INVALID_STATE, "this rank has left the job; create another to join it again");
}

void Membership::announce_leave() {
    store_->set(key("leave", roster_.number + 1), id_);
}

void Membership::leave() {
    if (std::exchange(left_, true)) return;
    forget_watches();
    store_->set(gone_key(id_), elastic_keys::kLeft);
    store_->remove_will(gone_key(id_));
    announce_leave();
}

}  // namespace libddp
