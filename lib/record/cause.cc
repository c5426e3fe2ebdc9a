#include "record/cause.h"

#include <algorithm>

#include "util/error.h"

namespace libddp::record {
namespace {

bool may_follow_from_another(std::int32_t status) {
    return status == DDP_ERROR_TIMEOUT || status == DDP_ERROR_RANK_FAILED || status == DDP_ERROR_ABORTED ||
           status == DDP_ERROR_UNAVAILABLE;
}

std::string who(const Position& position) {
    std::string text = str("rank ", position.rank);
    return position.process ? str(text, " (pid ", position.process->pid, " on ", position.process->host, ")") : text;
}

// " ranks 0 and 2 have waited 4.2 s for it, at bucket 5 of step 41": those that are in an operation which this one has not begun.
std::string waiters(const Group& group, const Position& late) {
    std::vector<std::int32_t> ranks;
    const Position* first = nullptr;
    for (const Position& position : group.ranks) {
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
               " waited ", duration_text(static_cast<double>(group.now_ns - first->underway->since_ns)), " for it, at ",
               describe(*first->underway));
}

bool is_over(const Group& group, const Position& position) {
    return group.verdict || position.life == Life::kEnded;
}

std::string where(const Group& group, const Position& position) {
    return str(is_over(group, position) ? "it was " : "it is ", describe(group, position));
}

const Position* find_dead(const Group& group) {
    const auto dead =
        std::find_if(group.ranks.begin(), group.ranks.end(), [](const Position& position) { return position.killed; });
    if (dead != group.ranks.end()) return &*dead;
    if (group.verdict) return nullptr;
    // Nobody has said how it ended: it is dead if it has not freed the group, and others still have it.
    const bool others = std::any_of(group.ranks.begin(), group.ranks.end(), [](const Position& position) {
        return position.life == Life::kRuns || position.life == Life::kStopped;
    });
    const auto gone = std::find_if(group.ranks.begin(), group.ranks.end(), [](const Position& position) {
        return position.life == Life::kEnded && position.at != Position::At::kLeft;
    });
    return others && gone != group.ranks.end() ? &*gone : nullptr;
}

Cause at_rank(Cause::Kind kind, const Group& group, const Position& position, const std::string& what) {
    std::string place = where(group, position) + waiters(group, position);
    return {kind, position.rank, str(who(position), ' ', what, "; ", place), place};
}

// The rank that the verdict names, or which is behind all others.
const Position* find_late(const Group& group) {
    if (group.verdict && group.verdict->rank >= 0 && group.verdict->rank < group.world)
        return &group.ranks[static_cast<std::size_t>(group.verdict->rank)];
    return nullptr;
}

}  // namespace

std::optional<Cause> find_cause(const Group& group, std::int64_t patience_ns) {
    if (const Position* position = find_dead(group))
        return at_rank(Cause::Kind::kDead, group, *position,
                       position->ending.empty() ? "has ended without freeing its group" : position->ending);
    if (group.verdict && !may_follow_from_another(group.verdict->status)) {
        return Cause{Cause::Kind::kVerdict, group.verdict->rank, group.verdict->message};
    }
    const Position* behind = nullptr;
    const Position* ahead = nullptr;
    for (const Position& position : group.ranks) {
        if (position.at == Position::At::kLeft) continue;
        if (!behind || position.begun < behind->begun) behind = &position;
        if (position.underway && (!ahead || position.underway->sequence > ahead->underway->sequence)) ahead = &position;
    }
    const bool waits = ahead && group.now_ns - ahead->underway->since_ns >= patience_ns;
    for (const Position& position : group.ranks)
        if (position.life == Life::kStopped && (waits || group.verdict))
            return at_rank(Cause::Kind::kStopped, group, position, "is stopped (SIGSTOP, or a debugger)");
    if (const Position* late = find_late(group)) {
        if (!late->process || late->at == Position::At::kLeft)
            return Cause{Cause::Kind::kAbsent, late->rank, group.verdict->message};
        return at_rank(Cause::Kind::kBehind, group, *late, late->ending.empty() ? "did not come" : late->ending);
    }
    if (!waits) return std::nullopt;
    if (!behind->process)
        return Cause{Cause::Kind::kAbsent, behind->rank,
                     str("there is no record of ", who(*behind), waiters(group, *behind))};
    if (behind->begun <= ahead->underway->sequence)
        return at_rank(Cause::Kind::kBehind, group, *behind, "has not come");
    return Cause{Cause::Kind::kTransfer, -1,
                 str("all ranks are at ", describe(*ahead->underway), ", and it has not ended for ",
                     duration_text(static_cast<double>(group.now_ns - ahead->underway->since_ns)),
                     ": the connection between them is slow or dead")};
}

std::vector<std::string> rank_lines(const Group& group) {
    std::vector<std::string> lines;
    for (const Position& position : group.ranks) {
        std::string line = who(position);
        if (!position.ending.empty()) line += str(' ', position.ending, ';');
        if (position.life == Life::kStopped) line += " is stopped;";
        line += is_over(group, position) ? " was" : " is";
        lines.push_back(str(line, ' ', describe(group, position)));
    }
    return lines;
}

}  // namespace libddp::record
