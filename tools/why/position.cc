#include "why/position.h"

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <limits>
#include <unordered_map>
#include <utility>

#include "record/operation.h"
#include "record/recorder.h"
#include "util/error.h"
#include "util/host.h"
#include "util/text.h"

namespace libddp::record {
namespace {

constexpr std::size_t kNamed = 3;  // of many parameters
constexpr std::size_t kNamedRanks = 20;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// A pid may be used again, so the time when the process began is compared, too.
Life life_of(const ProcessRecord& process) {
    const auto state = process_state(process.identity.pid);
    if (!state || state->started != process.identity.started)
        return process.identity.host == host_name() ? Life::kEnded : Life::kUnknown;
    if (state->letter == 'T' || state->letter == 't') return Life::kStopped;
    return state->letter == 'Z' || state->letter == 'X' ? Life::kEnded : Life::kRuns;
}

// Follows the events of one group and its contexts.
class Follower {
public:
    explicit Follower(Position& position)
        : position_(position), contexts_(*position.process, *position.group) {}

    void take(const Event& event) {
        if (event.kind == EventKind::kExit) {
            position_.exits = true;
            position_.exit_status = event.detail;
            return;
        }
        const bool of_group = event.owner == position_.group->owner;
        const ContextRecord* context = of_group ? nullptr : contexts_.find(event.owner);
        if (!of_group && !context) return;
        const std::int64_t at = event.time_ns;
        position_.last_ns = at;
        if (context && context != position_.context) position_.context = context;
        switch (event.kind) {
            case EventKind::kJoined:
                return go(Position::At::kProgram, at);
            case EventKind::kOperationBegin:
                position_.begun = event.sequence + 1;
                position_.underway = Underway{event.sequence, at,           event.step,
                                              event.bucket,   event.detail, event.bytes};
                if (position_.at == Position::At::kProgram) go(Position::At::kOperation, at);
                return;
            case EventKind::kOperationEnd:
                position_.underway.reset();
                if (position_.at == Position::At::kOperation) go(Position::At::kProgram, at);
                return;
            case EventKind::kLeft:
                return go(Position::At::kLeft, at);
            case EventKind::kStepBegin:
                position_.step = event.step;
                return go(Position::At::kBackward, at);
            case EventKind::kHookBegin:
                position_.bucket = event.bucket;
                resume_ = position_.at == Position::At::kHook ? resume_ : position_.at;
                resume_since_ =
                    position_.at == Position::At::kHook ? resume_since_ : position_.since_ns;
                return go(Position::At::kHook, at);
            case EventKind::kHookEnd:
                if (position_.at == Position::At::kHook) go(resume_, resume_since_);
                return;
            case EventKind::kBackwardEnd:
                return go(Position::At::kFinalize, at);
            case EventKind::kStepEnd:
                position_.step = event.step;
                return go(Position::At::kProgram, at);
            default:
                return;
        }
    }

private:
    void go(Position::At at, std::int64_t since) {
        position_.at = at;
        position_.since_ns = since;
    }

    Position& position_;
    const ContextsOfGroup contexts_;
    Position::At resume_ = Position::At::kBackward;
    std::int64_t resume_since_ = 0;
};

// The gradients that came in an earlier step and not in this one; in the first step all that are in
// buckets.
void count_gradients(Position& position) {
    const ContextRecord& context = *position.context;
    if (position.step < 0 || position.at == Position::At::kProgram) return;
    const auto now = static_cast<AnnouncedStep>(position.step + 1);
    const bool first = std::all_of(context.announced.begin(), context.announced.end(),
                                   [now](AnnouncedStep at) { return at == 0 || at == now; });
    for (const auto& bucket : context.buckets) {
        for (const std::int32_t param : bucket) {
            const auto i = static_cast<std::size_t>(param);
            if (context.announced[i] == 0 && !first) continue;
            ++position.expected;
            if (context.announced[i] == now)
                ++position.announced;
            else
                position.missing.push_back((*context.params)[i]);
        }
    }
}

Position find_position(const ProcessRecord& process, const GroupRecord& group,
                       std::int64_t until_ns) {
    Position position;
    position.rank = group.rank;
    position.process = &process;
    position.group = &group;
    position.life = life_of(process);
    // The event that says so may be lost.
    const std::int64_t joined_ns = group.totals.joined_ns;
    const bool joined = joined_ns != 0 && joined_ns <= until_ns;
    position.at = joined ? Position::At::kProgram : Position::At::kJoining;
    position.since_ns = joined ? joined_ns : group.created_ns;
    if (joined && process.lost > 0)
        position.begun = static_cast<std::int64_t>(group.totals.operations);
    Follower follower(position);
    for (const Event& event : process.events)
        if (event.time_ns <= until_ns) follower.take(event);
    // The event that says so may be lost.
    const std::int64_t left_ns = group.totals.left_ns;
    position.moved_on = left_ns != 0;
    if (position.moved_on && left_ns <= until_ns && position.at != Position::At::kLeft) {
        position.at = Position::At::kLeft;
        position.since_ns = left_ns;
    }
    if (process.failure && process.failure->time_ns <= until_ns)
        position.failure = &*process.failure;
    if (position.context) count_gradients(position);
    return position;
}

// A rank may have had several processes, one after another: what was seen before this one began is
// of another, and so is what was seen after this one had ended.
void take_sights(Position& position, const std::vector<Sight>& sights) {
    for (const Sight& sight : sights) {
        if (sight.launch_rank != position.process->identity.launch_rank) continue;
        if (sight.realtime_ns != 0 && sight.realtime_ns < position.process->opened_realtime_ns)
            continue;
        if (sight.kind == Sight::Kind::kStopped) {
            position.life = Life::kStopped;
            return;  // what ended it came later, and from the launcher
        }
        position.life = Life::kEnded;
        position.ending = sight.text;
        position.words = sight.words;
        position.killed = sight.kind == Sight::Kind::kKilled;
        if (sight.realtime_ns != 0) return;
    }
}

bool is_alive(const Position& position) {
    return position.life == Life::kRuns || position.life == Life::kStopped;
}

// The parts that the processes of one group have recorded.
struct Part {
    const ProcessRecord* process;
    const GroupRecord* group;
};
using Parts = std::vector<Part>;

// The verdict that was met first, and when: others may be echoes of it.
std::int64_t take_verdict(Group& group, const Parts& parts) {
    std::int64_t broken_ns = kNever;
    for (const Part& part : parts) {
        if (part.group->verdicts.empty()) continue;
        for (const Event& event : part.process->events) {
            if (event.kind != EventKind::kBroken || event.owner != part.group->owner) continue;
            if (event.time_ns >= broken_ns) break;
            broken_ns = event.time_ns;
            group.verdict = part.group->verdicts.front();
            break;
        }
    }
    return broken_ns;
}

// When it is known to have run, or when the records were read.
std::int64_t last_sign(const Position& position) {
    if (is_alive(position)) return now_ns() + position.process->clock.offset_ns;
    const std::int64_t alive_ns = position.process->alive_ns;
    return alive_ns == 0 || position.at == Position::At::kLeft
               ? position.last_ns
               : std::max(position.last_ns, alive_ns);
}

void find_standstill(Position& position, std::int64_t now_ns) {
    if (position.process->alive_ns == 0 || position.at == Position::At::kLeft) return;
    std::int64_t since_ns = std::max(position.process->alive_ns, position.last_ns);
    // It may have gone on after that, if only to be ended.
    for (const Event& event : position.process->events)
        if (event.kind == EventKind::kStoodStill && event.time_ns > now_ns)
            since_ns = std::min(since_ns, std::max(event.since_ns, position.last_ns));
    if (now_ns - since_ns >= kStandstillNs) position.still_ns = now_ns - since_ns;
}

bool is_older(const Part& a, const Part& b) {
    return a.process->opened_realtime_ns < b.process->opened_realtime_ns;
}

// The newest record of each rank, in the world of the newest of all, in a folder that several jobs
// have used. An earlier job may have had more ranks.
Parts newest(const Parts& all) {
    const std::int32_t world = std::max_element(all.begin(), all.end(), is_older)->group->world;
    Parts parts;
    for (const Part& part : all) {
        const auto newer = std::find_if(all.begin(), all.end(), [&](const Part& other) {
            return other.group->world == world && other.group->rank == part.group->rank &&
                   is_older(part, other);
        });
        if (part.group->world == world && newer == all.end()) parts.push_back(part);
    }
    return parts;
}

Group find_group(const Parts& all, const std::vector<Sight>& sights) {
    const Parts parts = newest(all);
    const GroupRecord& first = *parts.front().group;
    Group group;
    group.name = first.name;
    group.backend = first.backend;
    group.world = first.world;
    const std::int64_t broken_ns = take_verdict(group, parts);
    for (const Part& part : parts) {
        Position position = find_position(*part.process, *part.group, broken_ns);
        take_sights(position, sights);
        group.now_ns = std::min(std::max(group.now_ns, last_sign(position)), broken_ns);
        group.recorded.push_back(std::move(position));
    }
    std::stable_sort(group.recorded.begin(), group.recorded.end(),
                     [](const Position& a, const Position& b) { return a.rank < b.rank; });
    // The last of two records of one rank that are equally old counts.
    const auto last =
        std::unique(group.recorded.rbegin(), group.recorded.rend(),
                    [](const Position& a, const Position& b) { return a.rank == b.rank; });
    group.recorded.erase(group.recorded.begin(), last.base());
    for (Position& position : group.recorded) find_standstill(position, group.now_ns);
    return group;
}

std::string names_text(const std::vector<std::string>& names) {
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < kNamed; ++i)
        text += str(i == 0 ? "'" : ", '", names[i], "'");
    if (names.size() > kNamed) text += str(" and ", names.size() - kNamed, " more");
    return text;
}

std::string gradients_text(const Position& position) {
    if (position.expected == 0) return "";
    if (position.missing.empty()) return str(", after all ", position.expected, " gradients");
    return str(", after ", position.announced, " of ", position.expected, " gradients; ",
               names_text(position.missing), position.missing.size() == 1 ? " has" : " have",
               " not come");
}

// named: the first of so many.
std::string ranks_text(const std::vector<std::int32_t>& named, std::size_t count) {
    if (count == 1) return str("rank ", named.front());
    std::string text = "ranks ";
    const bool more = count > named.size();
    for (std::size_t i = 0; i < named.size(); ++i)
        text += str(i == 0 ? "" : i + 1 < named.size() || more ? ", " : " and ", named[i]);
    return more ? str(text, " and ", count - named.size(), " more") : text;
}

}  // namespace

std::string duration_text(double ns) {
    const auto [unit, length] = ns < 1e6   ? std::pair("us", 1e3)
                                : ns < 1e9 ? std::pair("ms", 1e6)
                                           : std::pair("s", 1e9);
    const double value = std::max(ns, 0.0) / length;
    TextOut text;
    text << std::fixed << std::setprecision(value < 9.95 && ns >= 1e6 ? 1 : 0) << value << ' '
         << unit;
    return text.str();
}

std::string bytes_text(double bytes) {
    constexpr std::pair<const char*, double> kUnits[] = {{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}};
    TextOut text;
    text << std::fixed;
    for (const auto& [unit, length] : kUnits) {
        if (bytes < length) continue;
        text << std::setprecision(bytes < 9.95 * length ? 1 : 0) << bytes / length << ' ' << unit;
        return text.str();
    }
    text << std::setprecision(0) << bytes << " bytes";
    return text.str();
}

std::string ranks_text(const std::vector<std::int32_t>& ranks) {
    return ranks_text({ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(
                                                          std::min(ranks.size(), kNamedRanks))},
                      ranks.size());
}

std::string ranges_text(const std::vector<RankRange>& ranges) {
    std::vector<std::int32_t> named;
    for (const auto& [first, last] : ranges)
        for (std::int32_t rank = first; rank <= last && named.size() < kNamedRanks; ++rank)
            named.push_back(rank);
    return ranks_text(named, static_cast<std::size_t>(count_of(ranges)));
}

const Position* Group::find(std::int32_t rank) const {
    const auto found = std::lower_bound(
        recorded.begin(), recorded.end(), rank,
        [](const Position& position, std::int32_t r) { return position.rank < r; });
    return found != recorded.end() && found->rank == rank ? &*found : nullptr;
}

std::vector<RankRange> absent_ranks(const Group& group) {
    std::vector<RankRange> ranges;
    std::int32_t next = 0;
    const auto add_up_to = [&](std::int32_t end) {
        if (next < end) ranges.emplace_back(next, end - 1);
        next = end + 1;
    };
    for (const Position& position : group.recorded) add_up_to(position.rank);
    add_up_to(group.world);
    return ranges;
}

std::int32_t count_of(const std::vector<RankRange>& ranges) {
    std::int32_t count = 0;
    for (const auto& [first, last] : ranges) count += last - first + 1;
    return count;
}

std::string describe(const Underway& operation) {
    if (operation.bucket >= 0) return str("bucket ", operation.bucket, " of step ", operation.step);
    if (const char* name = purpose_name(static_cast<Purpose>(purpose_of(operation.detail))))
        return name;
    const std::string kind = collective_name(collective_of(operation.detail));
    return str(kind.front() == 'a' ? "an " : "a ", kind, " of the program");
}

std::string describe(const Group& group, const Position& position) {
    // Nobody knows when a process has ended, unless the group broke for that.
    const bool known = group.verdict || position.life != Life::kEnded;
    const std::string time =
        known ? str(" for ", duration_text(static_cast<double>(group.now_ns - position.since_ns)))
              : "";
    const bool knows_steps = !position.process->contexts.empty();
    switch (position.at) {
        case Position::At::kJoining:
            return str("joining the group", time);
        case Position::At::kProgram:
            return str("in the program's own code", time,
                       position.step >= 0 ? str(", after step ", position.step)
                       : knows_steps      ? std::string(", before its first step")
                                          : std::string());
        case Position::At::kBackward:
            return str("in the backward pass of step ", position.step, time,
                       gradients_text(position));
        case Position::At::kHook:
            return str("in the communication hook of bucket ", position.bucket, ", step ",
                       position.step, time);
        case Position::At::kFinalize:
            return str("in ddp_finalize of step ", position.step, time,
                       position.underway ? str(", at ", describe(*position.underway)) : "");
        case Position::At::kOperation:
            return str("in ", position.underway ? describe(*position.underway) : "an operation",
                       time);
        case Position::At::kLeft:
            return "out of the group, which it has freed";
    }
    return "";
}

bool is_over(const Group& group) {
    const auto is_out = [](const Position& position) {
        return position.moved_on || position.life == Life::kEnded;
    };
    const auto moved_on = [](const Position& position) { return position.moved_on; };
    return std::all_of(group.recorded.begin(), group.recorded.end(), is_out) &&
           std::any_of(group.recorded.begin(), group.recorded.end(), moved_on);
}

std::vector<Group> find_groups(const std::vector<ProcessRecord>& records,
                               const std::vector<Sight>& sights, std::int32_t least_world) {
    std::vector<std::pair<std::string, Parts>> found;  // in the order in which groups were made
    std::unordered_map<std::string, std::size_t> places;
    for (const ProcessRecord& process : records) {
        for (const GroupRecord& part : process.groups) {
            if (part.world < least_world || part.rank < 0 || part.rank >= part.world) continue;
            const std::string key = part.name + '\0' + part.key;
            const auto [place, is_new] = places.emplace(key, found.size());
            if (is_new) found.push_back({key, {}});
            found[place->second].second.push_back({&process, &part});
        }
    }
    // A process that came late may have the first record.
    const auto made_ns = [](const auto& one) {
        std::int64_t first = kNever;
        for (const Part& part : one.second) first = std::min(first, part.group->created_ns);
        return first;
    };
    std::stable_sort(found.begin(), found.end(),
                     [&](const auto& a, const auto& b) { return made_ns(a) < made_ns(b); });
    std::vector<Group> groups;
    for (const auto& [key, parts] : found) groups.push_back(find_group(parts, sights));
    return groups;
}

}  // namespace libddp::record
