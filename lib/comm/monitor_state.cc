#include "comm/monitor_state.h"

#include <optional>

namespace libddp {
// The names below would be those of the whole unit of compilation.
namespace monitor_table {

using enum MonitorState;
using enum MonitorEvent;
using enum MonitorAction;

// Sets of states or of events.
constexpr unsigned in(auto... members) {
    return ((1U << static_cast<unsigned>(members)) | ...);
}

// no verdict, and the store may be there
constexpr unsigned kBefore = in(kOutside, kWatching, kLosing);
constexpr unsigned kThere = kBefore | in(kBroken);
constexpr unsigned kVerdictStands = in(kBroken, kBrokenSilent, kBrokenGone);
constexpr unsigned kAny = kThere | in(kSilent, kGone) | kVerdictStands;

// Events while a rank looks for the cause of a failure.
constexpr unsigned kSearch = in(kTransportFailed, kTimedOut, kWaited, kWaitedForLoss, kStoreAnswers,
                                kStoreSilent, kStoreLost);

struct Rule {
    unsigned events;
    unsigned from;
    std::optional<MonitorState> to;  // none: the same state
    MonitorAction action;
};

// The first rule that fits counts. Without one nothing happens.
constexpr Rule kRules[] = {
    {in(kStarted), in(kOutside), kWatching, kNone},

    {in(kVerdict), kBefore, kBroken, kAnnounce},
    {in(kVerdict), in(kSilent), kBrokenSilent, kAnnounce},
    {in(kVerdict), in(kGone), kBrokenGone, kAnnounce},

    {in(kReport), kVerdictStands, {}, kTakeVerdict},
    {in(kReport, kTell), kThere, {}, kWrite},
    {in(kReport, kTell), kAny, {}, kStandHere},
    {in(kAsked), kThere | in(kSilent, kBrokenSilent), {}, kAnswer},

    {in(kConnectionEnded), in(kWatching), kLosing, kNone},
    {in(kConnectionLost), kAny, {}, kExplainLoss},
    {in(kStoreGone), kBefore, kGone, kNone},
    {in(kStoreGone), in(kBroken), kBrokenGone, kNone},

    // The search ends with kTakeVerdict, kExplainLoss, kBlameStore or kBlameRanks.
    {in(kTransportFailed), in(kWatching, kLosing), {}, kWait},
    {in(kTransportFailed), in(kOutside), {}, kLookAtStore},
    {in(kTimedOut), kBefore, {}, kLookAtStore},
    {in(kWaited), kBefore, {}, kLookAtStore},
    {in(kWaitedForLoss), kBefore, {}, kExplainLoss},
    {in(kStoreAnswers), kBefore, {}, kBlameRanks},
    {in(kStoreLost), in(kOutside), {}, kExplainLoss},
    {in(kStoreLost), kBefore, kLosing, kWait},
    {in(kStoreSilent), kBefore, kSilent, kBlameStore},
    {in(kStoreSilent), in(kBroken), kBrokenSilent, kTakeVerdict},
    {kSearch, in(kSilent), {}, kBlameStore},
    {kSearch, in(kGone), {}, kBlameRanks},
    {kSearch, kVerdictStands, {}, kTakeVerdict},

    {in(kExit), kBefore, {}, kSayExit},
    {in(kExit), in(kBroken), {}, kTellWatchers},
    {in(kLeave), kThere, {}, kSayGoodbye},
    {in(kEnd), kThere, kEnded, kLetGo},
    {in(kEnd), kAny, kEnded, kNone},
};

}  // namespace monitor_table

Reaction react(MonitorState state, MonitorEvent event) {
    for (const auto& rule : monitor_table::kRules)
        if ((rule.events & monitor_table::in(event)) && (rule.from & monitor_table::in(state)))
            return {rule.to.value_or(state), rule.action};
    return {state, MonitorAction::kNone};
}

}  // namespace libddp
