#include "elastic/membership.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iomanip>
#include <thread>

#include "elastic/keys.h"
#include "launch/environment.h"
#include "rendezvous/protocol.h"
#include "util/boot_clock.h"
#include "util/error.h"
#include "util/host.h"
#include "util/interrupt.h"
#include "util/printable.h"
#include "util/text.h"

namespace libddp {
namespace {

// How often a meeting looks who has come. One who waits for a place may wait for hours.
constexpr std::int64_t kLookMs = 5;
constexpr std::int64_t kLookForPlaceMs = 100;
// Members who meet come nearly at once, unless they still believe in the last roster.
constexpr std::int64_t kSoonMs = 50;
// How long ~Membership() tries to tell the others.
constexpr std::int64_t kFarewellMs = 1000;
// Steps that take a longer part of settle_ms are confirmed by the store.
constexpr std::int64_t kStepsInSettling = 4;
// In how many steps the members meet after rank 0 has seen that they should: until then the others have heard of it.
constexpr std::int64_t kStepsAhead = 2;

std::string launch_pid() {
    const auto launched = process_env(elastic_keys::kLaunchPid);
    const bool known = launched && launched->find_first_not_of("0123456789") == std::string::npos;
    return known && !launched->empty() ? *launched : std::to_string(getpid());
}

// A number first, so that ids sort in the order of coming.
std::string make_id(Store& store, const std::string& key) {
    TextOut id;
    id << std::setw(12) << std::setfill('0') << store.add(key, 1) << '-' << host_name() << '-' << launch_pid();
    return id.str();
}

bool read_number(std::string_view text, std::int64_t& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size();
}

// Far from where they, or loaded_steps() of them, would overflow.
bool read_steps(std::string_view text, std::int64_t& steps) {
    constexpr std::int64_t kMost = std::int64_t{1} << 62;
    return read_number(text, steps) && steps <= kMost && steps >= -kMost;
}

bool is_among(const std::vector<Member>& members, const std::string& id) {
    return std::any_of(members.begin(), members.end(), [&](const Member& member) { return member.id == id; });
}

// A store that has just begun may know nothing of a job before: then the time of day is greater than its fences.
std::int64_t next_fence(Store& store, const RosterRecord& before) {
    if (before.number > 0) return before.fence + 1;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::max(store.raise_fence(0) + 1,
                    std::int64_t{std::chrono::duration_cast<std::chrono::milliseconds>(now).count()});
}

}  // namespace

// A rank that joins a job under way gets its state, whatever it has loaded from a checkpoint, also if a first attempt
// to join failed.
std::vector<std::int32_t> Roster::donors() const {
    std::vector<std::int32_t> ranks;
    const auto find = [&](bool among_loaded) {
        std::int64_t newest = 0;
        for (std::size_t i = 0; i < members.size(); ++i) {
            const std::int64_t steps = among_loaded ? loaded_steps(members[i].steps) : members[i].steps;
            if (steps < newest) continue;
            if (steps > newest) ranks.clear();
            newest = steps;
            ranks.push_back(static_cast<std::int32_t>(i));
        }
    };
    find(false);
    if (ranks.empty()) find(true);
    // Nobody has a state yet: the values of rank 0 are those of the job.
    return ranks.empty() ? std::vector<std::int32_t>{0} : ranks;
}

std::int64_t Roster::newest() const {
    if (members.empty()) return -1;
    const std::int64_t steps = members[static_cast<std::size_t>(donors().front())].steps;
    return std::max(steps, loaded_steps(steps));
}

Membership::Membership(std::shared_ptr<Store> store, const std::string& job, const MembershipOptions& options)
    : store_(std::move(store)),
      prefix_(elastic_keys::kJobs + job + "/"),
      options_(options),
      id_(make_id(*store_, prefix_ + "comers")) {
    if (options.min_world < 1 || options.max_world < options.min_world)
        fail(DDP_ERROR_INVALID_ARGUMENT, "min_world is ", options.min_world, " and max_world ", options.max_world,
             "; the first is at least 1 and at most the second. Where an option is 0, ddprun's counts");
    if (job.find('/') != std::string::npos)
        fail(DDP_ERROR_INVALID_ARGUMENT, "the name of the job is '", job, "'; it must not hold a '/'");
    store_->set_will(gone_key(id_), elastic_keys::kDied);
    connection_ = store_->watch_connection([this](const std::string&, bool) { cut_off_ = true; });
}

Membership::~Membership() {
    forget_watches();
    store_->unwatch(connection_);
    if (left_) return;
    try {
        const auto store = store_->bounded(kFarewellMs);
        store->set(gone_key(id_), elastic_keys::kEnded);
        store->remove_will(gone_key(id_));
    } catch (const std::exception&) {  // the store's will says so
    }
}

std::string Membership::key(const std::string& what, std::int64_t roster) const {
    return prefix_ + what + "/" + std::to_string(roster);
}

std::string RosterRecord::encode() const {
    std::string lines = std::to_string(number) + " " + std::to_string(fence) + "\n";
    for (const Member& member : members) lines += member.id + " " + std::to_string(member.steps) + "\n";
    return lines;
}

RosterRecord RosterRecord::decode(std::string text) {
    RosterRecord record;
    bool good = true;
    std::string_view rest = text;
    // Returns the text before the last space of the next line, and puts the number behind it into `value`.
    const auto next = [&](std::int64_t& value) {
        const std::size_t end = rest.find('\n');
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
        const std::size_t space = line.rfind(' ');
        good = good && end != std::string_view::npos && space != std::string_view::npos &&
               read_steps(line.substr(space + 1), value);
        return good ? line.substr(0, space) : std::string_view();
    };
    good = read_steps(next(record.fence), record.number) && good && record.number > 0 && record.fence >= 0;
    while (good && !rest.empty()) {
        Member member;
        member.id = next(member.steps);
        good = good && !member.id.empty() && !is_among(record.members, member.id);
        record.members.push_back(std::move(member));
    }
    if (!good) fail(DDP_ERROR_INTERNAL, "the store holds a malformed roster: ", in_quotes(text));
    record.text = std::move(text);
    return record;
}

std::string Membership::roster_key() const {
    return prefix_ + elastic_keys::kRoster;
}

std::string Membership::gone_key(const std::string& id) const {
    return prefix_ + elastic_keys::kGone + "/" + id;
}

// One key has the newest roster, and each replaces the one before: so there is one history, and a proposal that comes late finds a key
// that has changed.
Membership::Plan Membership::newest() const {
    return newest(*store_);
}

Membership::Plan Membership::newest(Store& store) const {
    if (!store.check({roster_key()})) return {};
    return Plan::decode(store.get(roster_key(), -1));
}

void Membership::enter(const Plan& before, std::int64_t steps) {
    const std::int64_t roster = before.number + 1;
    before_ = before.members;
    store_->set(key("meet", roster) + "/" + id_, std::to_string(steps));
    if (roster_.number == 0) store_->set(key("join", roster), id_);
}

std::set<std::string> Membership::gone() const {
    std::set<std::string> ids;
    const std::string folder = gone_key("");
    for (const std::string& key : store_->list_keys(folder)) ids.insert(key.substr(folder.size()));
    return ids;
}

std::vector<Member> Membership::arrivals(std::int64_t roster, const std::set<std::string>& gone) const {
    const std::string folder = key("meet", roster) + "/";
    Store::Keys keys = store_->list_keys(folder);
    std::sort(keys.begin(), keys.end());
    std::vector<Member> came;
    for (const std::string& key : keys) {
        const std::string id = key.substr(folder.size());
        if (gone.contains(id) || !store_->check({key})) continue;
        Member member{id};
        if (!read_steps(store_->get(key, -1), member.steps))
            fail(DDP_ERROR_INTERNAL, "'", key, "' in the store is no number");
        came.push_back(std::move(member));
    }
    return came;
}

void Membership::propose(const Plan& before, const std::vector<Member>& came) {
    Plan next;
    next.number = before.number + 1;
    next.fence = next_fence(*store_, before);
    for (const Member& member : before.members)
        for (const Member& one : came)
            if (one.id == member.id) next.members.push_back(one);
    for (const Member& one : came)
        if (!is_among(before.members, one.id)) next.members.push_back(one);
    if (next.members.size() > static_cast<std::size_t>(options_.max_world))
        next.members.resize(static_cast<std::size_t>(options_.max_world));
    store_->compare_set(roster_key(), before.text, next.encode());
}

// Waits for the roster after this one. The result may be a still later one.
Membership::Plan Membership::decide(const Plan& before, std::function<void()> late) {
    const std::int64_t roster = before.number + 1;
    const bool was_in = is_among(before.members, id_);
    Deadline deadline = Deadline::after_ms(options_.timeout_ms);
    Deadline settled = Deadline::after_ms(options_.settle_ms);
    const Deadline soon = Deadline::after_ms(kSoonMs);
    bool could_begin = false, waited_for_place = false;
    for (;;) {
        // The short waits of the store begin and end without asking.
        if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "the wait for roster ", roster, " was interrupted");
        Plan now = newest();
        if (now.number >= roster) return now;
        const std::set<std::string> gone = this->gone();
        const std::vector<Member> came = arrivals(roster, gone);
        const auto missing = std::count_if(before.members.begin(), before.members.end(), [&](const Member& member) {
            return !is_among(came, member.id) && !gone.contains(member.id);
        });
        const bool all_gone = std::all_of(before.members.begin(), before.members.end(),
                                          [&](const Member& member) { return gone.contains(member.id); });
        const auto count = static_cast<std::int64_t>(came.size());
        if (late && was_in && missing > 0 && soon.expired()) std::exchange(late, nullptr)();
        const bool enough = count >= options_.min_world;
        // When no member is left, those who come wait for each other, however long they have waited for a place.
        const bool may_begin = enough && all_gone;
        if (may_begin && !could_begin) settled = Deadline::after_ms(options_.settle_ms);
        could_begin = may_begin;
        // Ranks that waited for a place in a job that has ended must not begin another at once.
        waited_for_place = waited_for_place || !all_gone;
        const bool complete =
            all_gone ? !waited_for_place && count >= std::min(options_.max_world, options_.first_world) : missing == 0;
        const bool decides = was_in || all_gone;
        // A spare may wait for as long as there are members.
        if (!decides) deadline = Deadline::after_ms(options_.timeout_ms);
        if (decides && enough && (complete || settled.expired())) {
            propose(before, came);
            continue;
        }
        if (decides && !enough && deadline.expired())
            fail(DDP_ERROR_TIMEOUT, "roster ", roster, " did not begin within ", options_.timeout_ms, " ms: ", count,
                 " processes have come, and min_world is ", options_.min_world,
                 "; start more, or give min_world a smaller value");
        std::this_thread::sleep_for(std::chrono::milliseconds(decides ? kLookMs : kLookForPlaceMs));
    }
}

const Roster& Membership::meet(std::int64_t steps, const std::function<void()>& late) {
    require_present();
    forget_watches();
    const bool member = roster_.number > 0;
    for (;;) {
        seen_ms_ = boot_ms();
        const Plan before = newest();
        if (before.number != roster_.number) {
            if (is_among(before.members, id_)) {  // an earlier wait for this roster did not end well
                begin(before);
                return roster_;
            }
            if (member) left_behind(before);
        }
        enter(before, steps);
        const Plan next = decide(before, late);
        if (is_among(next.members, id_)) {
            begin(next);
            return roster_;
        }
        if (member) left_behind(next);
    }
}

void Membership::left_behind(const Plan& now) const {
    fail(DDP_ERROR_RANK_FAILED, "the others have gone on without this rank, in roster ", now.number, " with ",
         now.members.size(), " ranks, because it did not answer within ", options_.settle_ms,
         " ms; it may join again, and gets their state");
}

void Membership::begin(const Plan& next) {
    Roster roster;
    store_->raise_fence(next.fence);
    roster.number = next.number;
    roster.fence = next.fence;
    roster.members = next.members;
    for (std::size_t rank = 0; rank < roster.members.size(); ++rank) {
        if (roster.members[rank].id == id_) roster.rank = static_cast<std::int32_t>(rank);
        if (!is_among(before_, roster.members[rank].id)) ++roster.joined;
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
    const Plan now = newest(*store);
    if (now.number != roster_.number) left_behind(now);
    if (store->check({gone_key(id_)}))
        fail(DDP_ERROR_RANK_FAILED, "the store has taken this rank for dead, so the others go on without it");
    // A store with leases says with the next beat whether this process has lived all the time.
    while (boot_ms() >= store_->alive_until_ms()) {
        if (deadline.expired())
            fail(DDP_ERROR_TIMEOUT, "the store did not confirm within ", ms,
                 " ms that it counts this rank among the living");
        if (!interrupt::sleep(std::chrono::milliseconds(kLookMs), deadline))
            fail(DDP_ERROR_INTERRUPTED, "the wait for the store to confirm roster ", roster_.number,
                 " was interrupted");
        store->check({roster_key()});  // says whether it is lost
    }
    seen_ms_ = asked_ms;
}

// The others decide on a roster without this process after they have waited for settle_ms, or when the store takes it for dead. A rank
// that waits takes part in no collective, so this process finishes at most one step after the wait has begun. The wait then lies within
// the last three steps of this process, and one of them was long.
void Membership::confirm_if_in_doubt() {
    const std::int64_t now_ms = boot_ms();
    if (now_ms - seen_ms_ < options_.settle_ms / kStepsInSettling && now_ms < store_->alive_until_ms())
        seen_ms_ = now_ms;
    else
        confirm_within(options_.timeout_ms);
}

ErrorInfo Membership::lost_member() const {
    if (newest().number > roster_.number)
        return {DDP_ERROR_ABORTED, str("the others have gone on from roster ", roster_.number), -1};
    const std::set<std::string> gone = this->gone();
    for (std::size_t rank = 0; rank < roster_.members.size(); ++rank)
        if (gone.contains(roster_.members[rank].id))
            return {DDP_ERROR_RANK_FAILED,
                    str("rank ", rank, " of roster ", roster_.number, " (", roster_.members[rank].id,
                        ") has ended before it joined the group"),
                    static_cast<std::int32_t>(rank)};
    return {};
}

// The keys of the roster before stay: a member may not know yet that it has ended.
void Membership::remove_old_keys() const {
    static const std::set<std::string> kOfRosters{"due", "group", "join", "leave", "meet"};
    std::set<std::string> needed;  // whose end somebody may ask for
    for (const Member& member : roster_.members) needed.insert(member.id);
    Store::Keys old, ends;
    for (const std::string& key : store_->list_keys(prefix_)) {
        const std::size_t word = key.find('/', prefix_.size());
        if (word == std::string::npos) continue;
        const std::string what = key.substr(prefix_.size(), word - prefix_.size());
        const std::size_t end = std::min(key.find('/', word + 1), key.size());
        const std::string name = key.substr(word + 1, end - word - 1);
        if (what == elastic_keys::kGone) ends.push_back(key);
        std::int64_t number = 0;
        if (!kOfRosters.contains(what) || !read_number(name, number)) continue;
        if (number < roster_.number - 1)
            old.push_back(key);
        else if (what == "meet" && end < key.size())
            needed.insert(key.substr(end + 1));
    }
    for (const std::string& key : ends)
        if (!needed.contains(key.substr(gone_key("").size()))) old.push_back(key);
    // Each member removes its share.
    const auto world = roster_.members.size();
    for (std::size_t i = static_cast<std::size_t>(roster_.rank); i < old.size(); i += world) store_->remove(old[i]);
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
    if (cut_off_) store_->check({roster_key()});  // says why
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
    if (left_) return;
    forget_watches();
    store_->set(gone_key(id_), elastic_keys::kLeft);
    left_ = true;
    store_->remove_will(gone_key(id_));
    announce_leave();
}

}  // namespace libddp
