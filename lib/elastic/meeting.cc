#include "elastic/meeting.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "util/error.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

// Watches say when to look again. A process that dies between two writes leaves one of them unsaid,
// so nobody waits longer than this.
constexpr std::int64_t kLookMs = 1'000;
// Members who meet come nearly at once, unless they still believe in the last roster. The first of
// them proposes as soon.
constexpr std::int64_t kSoonMs = 50;

// A store that has just begun may know nothing of a job before: then the time of day is greater
// than its fences.
std::int64_t next_fence(Store& store, const RosterRecord& before) {
    if (before.number > 0) return before.fence + 1;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::max(
        store.raise_fence(0) + 1,
        std::int64_t{std::chrono::duration_cast<std::chrono::milliseconds>(now).count()});
}

bool holds(const std::vector<std::string>& ids, const std::string& id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Meeting::Meeting(Store& store, const JobKeys& keys, const MembershipOptions& options,
                 const std::string& id, const RosterRecord& before)
    : store_(store),
      keys_(keys),
      options_(options),
      id_(id),
      before_(before),
      number_(before.number + 1) {}

Meeting::~Meeting() {
    for (const auto& [key, watch] : watches_) store_.unwatch(watch);
}

void Meeting::enter(std::int64_t steps, bool joins) {
    store_.set(keys_.of("meet", number_) + "/" + id_, std::to_string(steps));
    if (joins) store_.set(keys_.of("join", number_), id_);
    if (is_among(before_.members, id_)) return;
    const std::string came = keys_.of("came", number_);
    store_.set(came + "/" + std::to_string(store_.add(came, 1)), id_);
}

Meeting::Look Meeting::look() const {
    Look look;
    // First, so that everybody who is counted is in the list.
    if (counts_comers_) look.comers = store_.add(keys_.of("came", number_), 0);
    look.newest = newest_roster(store_, keys_);
    if (look.newest.number >= number_) return look;
    const std::string ends = keys_.gone(""), folder = keys_.of("meet", number_) + "/";
    for (const std::string& key : store_.list_keys(ends)) look.gone.insert(key.substr(ends.size()));
    for (const std::string& key : store_.list_keys(folder))
        if (const std::string id = key.substr(folder.size()); !look.gone.contains(id))
            look.came.push_back(id);
    std::sort(look.came.begin(), look.came.end());
    return look;
}

RosterRecord Meeting::propose(const std::vector<std::string>& came) {
    std::vector<Member> members;
    for (const std::string& id : came) {
        Member member{id};
        const std::string key = keys_.of("meet", number_) + "/" + id;
        const auto steps = find_value(store_, key);
        if (!steps) continue;  // this meeting is long over
        if (!read_steps(*steps, member.steps))
            fail(DDP_ERROR_INTERNAL, "'", key, "' in the store is no number");
        members.push_back(std::move(member));
    }
    RosterRecord next;
    next.number = number_;
    next.fence = next_fence(store_, before_);
    for (const Member& member : before_.members)
        for (const Member& one : members)
            if (one.id == member.id) next.members.push_back(one);
    for (const Member& one : members)
        if (!is_among(before_.members, one.id)) next.members.push_back(one);
    if (next.members.size() > static_cast<std::size_t>(options_.max_world))
        next.members.resize(static_cast<std::size_t>(options_.max_world));
    put_hosts_together(next.members);
    next = RosterRecord::decode(store_.compare_set(keys_.roster(), before_.text, next.encode()));
    store_.set(keys_.of("decided", number_), id_);
    return next;
}

// The next wait ends when there is this key.
void Meeting::wake_at(const std::string& key) {
    if (watches_.contains(key)) return;
    const auto news = [this] {
        const Lock lock(mutex_);
        news_ = true;
        changed_.notify_all();
    };
    watches_[key] = key.empty()
                        ? store_.watch_connection([news](const std::string&, bool) { news(); })
                        : store_.watch(key, [news](const std::string&) { news(); });
}

void Meeting::wait(std::int64_t ms) {
    Lock lock(mutex_);
    const auto waited = interrupt::wait(lock, changed_, Deadline::after_ms(ms),
                                        [this]() DDP_REQUIRES(mutex_) { return news_; });
    if (waited == interrupt::Waited::kInterrupted)
        fail(DDP_ERROR_INTERRUPTED, "the wait for roster ", number_, " was interrupted");
}

RosterRecord Meeting::decide(std::function<void()> late) {
    const bool was_in = is_among(before_.members, id_);
    Deadline deadline = Deadline::after_ms(options_.timeout_ms);
    Deadline settled = Deadline::after_ms(options_.settle_ms);
    const Deadline soon = Deadline::after_ms(kSoonMs);
    std::optional<Deadline> yields;  // until then another one proposes
    bool could_begin = false, waited_for_place = false;
    wake_at("");
    wake_at(keys_.of("decided", number_));
    for (;;) {
        // The short waits of the store begin and end without asking.
        if (interrupt::wanted())
            fail(DDP_ERROR_INTERRUPTED, "the wait for roster ", number_, " was interrupted");
        {
            const Lock lock(mutex_);
            news_ = false;
        }
        Look now = look();
        if (now.newest.number >= number_) return std::move(now.newest);
        const auto is_gone = [&](const Member& member) { return now.gone.contains(member.id); };
        const auto is_missing = [&](const Member& member) {
            return !holds(now.came, member.id) && !is_gone(member);
        };
        const auto missing =
            std::find_if(before_.members.begin(), before_.members.end(), is_missing);
        const bool any_missing = missing != before_.members.end();
        const auto alive =
            std::find_if_not(before_.members.begin(), before_.members.end(), is_gone);
        const bool all_gone = alive == before_.members.end();
        const auto count = static_cast<std::int64_t>(now.came.size());
        if (late && was_in && any_missing && soon.expired()) std::exchange(late, nullptr)();
        const bool enough = count >= options_.min_world;
        // When no member is left, those who come wait for each other, however long they have waited
        // for a place.
        const bool may_begin = enough && all_gone;
        if (may_begin && !could_begin) settled = Deadline::after_ms(options_.settle_ms);
        could_begin = may_begin;
        // Ranks that waited for a place in a job that has ended must not begin another at once.
        waited_for_place = waited_for_place || !all_gone;
        const bool complete =
            all_gone
                ? !waited_for_place && count >= std::min(options_.max_world, options_.first_world)
                : !any_missing;
        const bool decides = was_in || all_gone;
        // A spare may wait for as long as there are members.
        if (!decides) deadline = Deadline::after_ms(options_.timeout_ms);
        const bool proposes = decides && enough && (complete || settled.expired());
        std::int64_t wait_ms = kLookMs;
        const auto wait_until = [&](const Deadline& end) {
            wait_ms = std::min(wait_ms, end.remaining_ms());
        };
        if (proposes) {
            // Each of those who decide may propose. The first of them does, and the others if it
            // does not do so soon.
            const auto first = std::find_if(
                now.came.begin(), now.came.end(),
                [&](const std::string& id) { return all_gone || is_among(before_.members, id); });
            if (!yields) yields = Deadline::after_ms(kSoonMs);
            if (first == now.came.end() || *first == id_ || yields->expired()) {
                if (RosterRecord next = propose(now.came); next.number >= number_) return next;
                continue;
            }
            wake_at(keys_.gone(*first));
            wait_until(*yields);
        } else if (decides) {
            if (!enough && deadline.expired())
                fail(DDP_ERROR_TIMEOUT, "roster ", number_, " did not begin within ",
                     options_.timeout_ms, " ms: ", count, " processes have come, and min_world is ",
                     options_.min_world, "; start more, or give min_world a smaller value");
            wait_until(enough ? settled : deadline);
            if (any_missing) {
                wake_at(keys_.of("meet", number_) + "/" + missing->id);
                wake_at(keys_.gone(missing->id));
                if (late && was_in) wait_until(soon);
            }
            if (all_gone || !enough) {
                if (!std::exchange(counts_comers_, true)) continue;
                wake_at(keys_.of("came", number_) + "/" + std::to_string(now.comers + 1));
            }
        } else {
            wake_at(keys_.gone(alive->id));
        }
        wait(wait_ms);
    }
}

}  // namespace libddp
