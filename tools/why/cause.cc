#include "why/cause.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "util/error.h"
#include "util/printable.h"
#include "why/connections.h"

namespace libddp::record {
namespace {

constexpr std::int64_t kRecentNs = 10'000'000'000;

bool may_follow_from_another(std::int32_t status) {
    return status == DDP_ERROR_TIMEOUT || status == DDP_ERROR_RANK_FAILED ||
           status == DDP_ERROR_ABORTED || status == DDP_ERROR_UNAVAILABLE;
}

std::string who(const Position& position) {
    return str("rank ", position.rank, " (pid ", position.process->identity.pid, " on ",
               position.process->identity.host, ")");
}

// "; ranks 0 and 2 have waited 4.2 s for it, at bucket 5 of step 41": those that are in an
// operation which this one has not begun.
std::string waiters(const Group& group, const Position& late) {
    std::vector<std::int32_t> ranks;
    const Position* first = nullptr;
    for (const Position& position : group.recorded) {
        if (!position.underway || position.rank == late.rank) continue;
        if (position.underway->sequence < late.begun) continue;
        ranks.push_back(position.rank);
        if (!first || position.underway->since_ns < first->underway->since_ns) first = &position;
    }
    if (!first) return "";
    return str("; ", ranks_text(ranks),
               group.verdict       ? " had"
               : ranks.size() == 1 ? " has"
                                   : " have",
               " waited ",
               duration_text(static_cast<double>(group.now_ns - first->underway->since_ns)),
               " for it, at ", describe(*first->underway));
}

bool is_over(const Group& group, const Position& position) {
    return group.verdict || position.life == Life::kEnded;
}

std::string where(const Group& group, const Position& position) {
    return str(is_over(group, position) ? "it was " : "it is ", describe(group, position));
}

Cause at_rank(Cause::Kind kind, const Group& group, const Position& position,
              const std::string& what) {
    std::string place = where(group, position) + waiters(group, position);
    return {kind, position.rank, str(who(position), ' ', what, "; ", place), place};
}

// Null: it names none, or one without a record.
const Position* named_by_verdict(const Group& group) {
    return group.verdict ? group.find(group.verdict->rank) : nullptr;
}

bool verdict_names_absent(const Group& group) {
    return group.verdict && group.verdict->rank >= 0 && group.verdict->rank < group.world &&
           !named_by_verdict(group);
}

// A rank that aborts may do that because another has died.
bool gives_up_itself(const Position& position) {
    return position.ending.find("SIGABRT") != std::string::npos ||
           position.ending.find("SIGPIPE") != std::string::npos;
}

const Position* find_dead(const Group& group) {
    const Position* named = named_by_verdict(group);
    if (named && named->killed && !gives_up_itself(*named)) return named;
    const Position* killed = nullptr;
    for (const Position& position : group.recorded)
        if (position.killed &&
            (!killed || (gives_up_itself(*killed) && !gives_up_itself(position))))
            killed = &position;
    if (killed) return killed;
    if (group.verdict) return nullptr;
    // Nobody has said how it ended: it is dead if it has not freed the group, and others still have
    // it.
    const bool others =
        std::any_of(group.recorded.begin(), group.recorded.end(), [](const Position& position) {
            return position.life == Life::kRuns || position.life == Life::kStopped;
        });
    const auto gone =
        std::find_if(group.recorded.begin(), group.recorded.end(), [](const Position& position) {
            return position.life == Life::kEnded && position.at != Position::At::kLeft;
        });
    return others && gone != group.recorded.end() ? &*gone : nullptr;
}

// An error that a call has given it last, unless that may follow from what another rank did. The
// program may have gone on after older ones.
bool tells_why(const Group& group, const Position& position) {
    return position.failure && !may_follow_from_another(position.failure->status) &&
           group.now_ns - position.failure->time_ns < kRecentNs;
}

// One that has ended by itself before it left the group.
const Position* find_ended(const Group& group) {
    const Position* ended = nullptr;
    for (const Position& position : group.recorded) {
        const bool exits = position.exits && position.at != Position::At::kLeft;
        // After the verdict all end.
        if (group.verdict ? !exits
                          : (position.ending.empty() && !(exits && position.exit_status != 0)))
            continue;
        if (!ended || (tells_why(group, position) && !tells_why(group, *ended))) ended = &position;
    }
    const Position* named = named_by_verdict(group);
    if (ended || !named || group.verdict->status == DDP_ERROR_TIMEOUT) return ended;
    return named->at != Position::At::kLeft && !named->ending.empty() ? named : nullptr;
}

Cause ended_cause(const Group& group, const Position& position) {
    const std::string how = !position.ending.empty() ? position.ending
                            : position.exits ? str("exited with status ", position.exit_status)
                                             : "has ended without freeing its group";
    if (tells_why(group, position)) {
        const std::string& why = position.failure->message;
        return {Cause::Kind::kDead, position.rank, str(who(position), ' ', how, ": ", why), why};
    }
    Cause cause = at_rank(Cause::Kind::kDead, group, position, how);
    if (position.words.empty()) return cause;
    cause.place = str("its last words were '", position.words, "'; ", cause.place);
    cause.sentence = str(who(position), ' ', how, ": ", cause.place);
    return cause;
}

// The order of the ranks that have a record: which has come least far, and which waits at the last
// operation that anyone has begun.
struct Order {
    const Position* behind = nullptr;
    const Position* ahead = nullptr;
    const Position* left = nullptr;  // has freed the group before that operation
};

Order find_order(const Group& group) {
    Order order;
    for (const Position& position : group.recorded) {
        const bool waits = position.underway && position.at != Position::At::kLeft;
        if (waits &&
            (!order.ahead || position.underway->sequence > order.ahead->underway->sequence))
            order.ahead = &position;
        if (position.at != Position::At::kLeft &&
            (!order.behind || position.begun < order.behind->begun))
            order.behind = &position;
    }
    for (const Position& position : group.recorded)
        if (order.ahead && position.at == Position::At::kLeft &&
            position.begun <= order.ahead->underway->sequence)
            order.left = &position;
    return order;
}

// The one that has come least far.
const Position* find_stopped(const Group& group) {
    const Position* stopped = nullptr;
    for (const Position& position : group.recorded) {
        if (position.life != Life::kStopped && position.still_ns == 0) continue;
        if (!stopped || position.begun < stopped->begun) stopped = &position;
    }
    return stopped;
}

Cause stopped_cause(const Group& group, const Position& position) {
    if (position.life == Life::kStopped)
        return at_rank(Cause::Kind::kStopped, group, position,
                       "is stopped (SIGSTOP, or a debugger)");
    const double still = static_cast<double>(position.still_ns);
    return at_rank(Cause::Kind::kStopped, group, position,
                   str("stands still: no thread of it has run for ", duration_text(still),
                       " (SIGSTOP, a debugger, or its machine)"));
}

Cause left_cause(const Group& group, const Position& position) {
    const std::string after = position.step < 0 ? std::string("before its first step")
                                                : str("after step ", position.step);
    std::string place = str("it has left the group ", after, waiters(group, position));
    return {Cause::Kind::kLeft, position.rank,
            str(who(position), " has left the group ", after, waiters(group, position),
                "; ranks that make different numbers of steps need ddp_join"),
            place};
}

// Among ranks that have begun the same operation: the one that takes it for something else than
// most do.
std::optional<Cause> find_disagreement(const Group& group, std::int64_t sequence) {
    const auto kind_of = [](const Position& position) {
        const Underway& operation = *position.underway;
        return std::tuple(operation.detail, operation.bucket, operation.step, operation.bytes);
    };
    std::vector<const Position*> there;
    for (const Position& position : group.recorded)
        if (position.underway && position.underway->sequence == sequence)
            there.push_back(&position);
    const auto alike = [&](const Position* one) {
        return std::count_if(there.begin(), there.end(), [&](const Position* other) {
            return kind_of(*one) == kind_of(*other);
        });
    };
    if (there.empty()) return std::nullopt;
    const Position* one = *std::min_element(
        there.begin(), there.end(),
        [&](const Position* a, const Position* b) { return alike(a) < alike(b); });
    const auto other = std::find_if(there.begin(), there.end(), [&](const Position* position) {
        return kind_of(*position) != kind_of(*one);
    });
    if (other == there.end()) return std::nullopt;
    const auto text = [](const Position& position) {
        return str(describe(*position.underway), " (",
                   bytes_text(static_cast<double>(position.underway->bytes)), ")");
    };
    // of two that differ nobody knows which is wrong
    const bool is_odd = alike(one) < alike(*other);
    return Cause{
        Cause::Kind::kDisagree, is_odd ? one->rank : -1,
        str(who(*one), " is in ", text(*one), ", but rank ", (*other)->rank, " is in ",
            text(**other),
            ": the program calls its collectives in different orders or with different sizes")};
}

// -1: there are several.
std::int32_t only_rank(const std::vector<RankRange>& ranges) {
    return count_of(ranges) == 1 ? ranges.front().first : -1;
}

// All that have a record are in one operation.
Cause absent_cause(const Group& group, const Position& ahead,
                   const std::vector<RankRange>& absent) {
    const std::int32_t rank = verdict_names_absent(group) ? group.verdict->rank : only_rank(absent);
    const double waited = static_cast<double>(group.now_ns - ahead.underway->since_ns);
    const std::string text = str("the ranks of this folder are in ", describe(*ahead.underway),
                                 ", which has not ended for ", duration_text(waited),
                                 ", and it has no record of ", ranges_text(absent));
    if (const auto dead = dead_connection_text(group))
        return {Cause::Kind::kAbsent, rank, str(*dead, "; ", text)};
    return {Cause::Kind::kAbsent, rank, group.verdict ? group.verdict->message : text};
}

// Some wait in joining, and others have not come there.
std::optional<Cause> joining_cause(const Group& group, std::int64_t patience_ns) {
    std::vector<std::int32_t> ranks;
    std::int64_t since_ns = group.now_ns;
    for (const Position& position : group.recorded) {
        if (position.at != Position::At::kJoining || position.life == Life::kEnded) continue;
        ranks.push_back(position.rank);
        since_ns = std::min(since_ns, position.since_ns);
    }
    const std::vector<RankRange> absent = absent_ranks(group);
    if (ranks.empty() || absent.empty() || group.now_ns - since_ns < patience_ns)
        return std::nullopt;
    const std::int32_t only = only_rank(absent);
    return Cause{Cause::Kind::kAbsent, only,
                 str(ranks_text(ranks), ranks.size() == 1 ? " has" : " have", " waited ",
                     duration_text(static_cast<double>(group.now_ns - since_ns)), " for ",
                     ranges_text(absent), " to join; this folder has no record of ",
                     only >= 0 ? "it" : "them")};
}

Cause transfer_cause(const Group& group, const Underway& operation) {
    const double waited = static_cast<double>(group.now_ns - operation.since_ns);
    return {Cause::Kind::kTransfer, -1,
            str("all ranks are in ", describe(operation), ", which has not ended for ",
                duration_text(waited), ": ", connection_text(group))};
}

}  // namespace

const char* kind_name(Cause::Kind kind) {
    switch (kind) {
        case Cause::Kind::kDead:
            return "dead";
        case Cause::Kind::kVerdict:
            return "verdict";
        case Cause::Kind::kStopped:
            return "stopped";
        case Cause::Kind::kBehind:
            return "behind";
        case Cause::Kind::kLeft:
            return "left";
        case Cause::Kind::kAbsent:
            return "absent";
        case Cause::Kind::kDisagree:
            return "disagree";
        case Cause::Kind::kTransfer:
            return "transfer";
    }
    return "";
}

std::optional<Cause> find_cause(const Group& group, std::int64_t patience_ns) {
    if (const Position* position = find_dead(group))
        return at_rank(
            Cause::Kind::kDead, group, *position,
            position->ending.empty() ? "has ended without freeing its group" : position->ending);
    if (group.verdict && !may_follow_from_another(group.verdict->status))
        return Cause{Cause::Kind::kVerdict, group.verdict->rank, group.verdict->message};
    const bool timed_out = group.verdict && group.verdict->status == DDP_ERROR_TIMEOUT;
    if (const Position* position = find_ended(group)) return ended_cause(group, *position);
    const auto [behind, ahead, left] = find_order(group);
    const bool waits = ahead && group.now_ns - ahead->underway->since_ns >= patience_ns;
    if (waits || group.verdict)
        if (const Position* position = find_stopped(group)) return stopped_cause(group, *position);
    const bool failed = group.verdict && !timed_out;
    const Position* named = named_by_verdict(group);
    if (named && failed && named->at != Position::At::kLeft)
        return Cause{
            Cause::Kind::kDead, named->rank,
            str(group.verdict->message, "; ", where(group, *named), waiters(group, *named)),
            where(group, *named) + waiters(group, *named)};
    if (left && (waits || failed)) return left_cause(group, *left);
    if (verdict_names_absent(group)) {
        const std::int32_t rank = group.verdict->rank;
        if (ahead) return absent_cause(group, *ahead, {{rank, rank}});
        return Cause{Cause::Kind::kAbsent, rank, group.verdict->message};
    }
    if (!waits && !(group.verdict && ahead)) {
        if (!group.verdict) return joining_cause(group, patience_ns);
        return Cause{Cause::Kind::kVerdict, group.verdict->rank, group.verdict->message};
    }
    if (behind->begun <= ahead->underway->sequence)
        return at_rank(Cause::Kind::kBehind, group, *behind,
                       group.verdict ? "did not come" : "has not come");
    if (const auto absent = absent_ranks(group); !absent.empty())
        return absent_cause(group, *ahead, absent);
    if (auto disagreement = find_disagreement(group, ahead->underway->sequence))
        return disagreement;
    return transfer_cause(group, *ahead->underway);
}

std::string group_text(const Group& group, std::int64_t patience_ns) {
    const auto cause = find_cause(group, patience_ns);
    std::string text =
        str("group '", printable(group.name),
            "': ", cause ? printable(cause->sentence) : "no rank waits for another", '\n');
    for (const Position& position : group.recorded) {
        std::string line = who(position);
        if (!position.ending.empty()) line += str(' ', position.ending, ';');
        if (position.life == Life::kStopped) line += " is stopped;";
        line += is_over(group, position) ? " was" : " is";
        text += str("  ", printable(str(line, ' ', describe(group, position))), '\n');
    }
    if (const auto absent = absent_ranks(group); !absent.empty())
        text += str("  ", ranges_text(absent), only_rank(absent) >= 0 ? " is" : " are",
                    " without a record\n");
    return text;
}

}  // namespace libddp::record
