// The states of a monitor, what can happen in them, and what the monitor then does. A pure table:
// threads, calls of the store and timers are in comm/monitor.cc.
#pragma once

#include <cstdint>

namespace libddp {

enum class MonitorState : std::uint8_t {
    kOutside,   // nobody listens for a verdict: the rank is not taken yet, or could not be
    kWatching,  // there is no verdict
    kLosing,    // the connection to the store has ended, and the monitor finds out why
    // the store does not answer, though its connection stands: its process is stopped or cut off
    kSilent,
    kGone,          // the store has gone
    kBroken,        // the verdict stands
    kBrokenSilent,  // the verdict stands, and the store does not answer
    kBrokenGone,    // the verdict stands, and the store has gone
    kEnded,         // the monitor is being freed
};

enum class MonitorEvent : std::uint8_t {
    kStarted,  // this rank is taken, and the monitor's thread runs
    // there is a verdict: another rank's, or this rank's where nobody else can be told
    kVerdict,
    kReport,           // this rank has an error that is to be the verdict
    kTell,             // the others are to hear of an error that may stand here already
    kAsked,            // another rank asks how far this one is
    kConnectionEnded,  // seen on a thread of the store
    kConnectionLost,   // the same, on the monitor's thread: the store has not said that it ends
    kStoreGone,        // the connection has ended, and everything that can be said about it is said
    kTransportFailed,  // maybe because of what happened to another rank
    kTimedOut,         // an operation of this rank
    kWaited,           // for the verdict, as long as one waits for it
    kWaitedForLoss,    // the same, when the store could not be asked any more
    kStoreAnswers,     // within its time
    kStoreSilent,      // it did not answer within its time
    kStoreLost,        // it cannot be asked any more
    kExit,             // the process exits, and this rank has not left
    kLeave,            // this rank leaves
    kEnd,
};

enum class MonitorAction : std::uint8_t {
    kNone,
    // keep the verdict, and let the link and the other groups of this process hear of it
    kAnnounce,
    kWrite,         // write the error into the store, unless a verdict stands there
    kStandHere,     // the error stands here alone
    kTakeVerdict,   // the verdict that stands is the answer
    kAnswer,        // tell how far this rank is
    kExplainLoss,   // connect again, and find out whether the store or this rank is to blame
    kWait,          // for the verdict
    kLookAtStore,   // whether it answers
    kBlameStore,    // the rank that runs the store is to blame
    kBlameRanks,    // look for the rank that left, is silent or is behind
    kSayExit,       // replace the will by one that tells the exit status
    kTellWatchers,  // the store ends with this process: the others hear the verdict first
    kSayGoodbye,    // write that this rank has left, and remove the will
    kLetGo,         // the last rank that lets go of the group's keys removes them
};

struct Reaction {
    MonitorState state;
    MonitorAction action;
};

Reaction react(MonitorState state, MonitorEvent event);

// Whether a verdict may still come to this rank.
constexpr bool may_hear(MonitorState state) {
    return state == MonitorState::kWatching || state == MonitorState::kLosing;
}

constexpr bool is_silent(MonitorState state) {
    return state == MonitorState::kSilent || state == MonitorState::kBrokenSilent;
}

}  // namespace libddp
