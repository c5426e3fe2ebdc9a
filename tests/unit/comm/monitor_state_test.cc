// A monitor's table, without threads or a store.
#include "comm/monitor_state.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace libddp {
namespace {

using enum MonitorState;
using enum MonitorEvent;
using enum MonitorAction;

constexpr int kStates = static_cast<int>(kEnded) + 1, kEvents = static_cast<int>(kEnd) + 1;

const std::set<MonitorState> kWithVerdict{kBroken, kBrokenSilent, kBrokenGone};
const std::set<MonitorState> kWithoutStore{kSilent, kGone, kBrokenSilent, kBrokenGone};
const std::set<MonitorAction> kEndsOfSearch{kTakeVerdict, kExplainLoss, kBlameStore, kBlameRanks};

// A monitor as the table leaves it.
struct Machine {
    MonitorState state = kOutside;

    MonitorAction raise(MonitorEvent event) {
        const Reaction reaction = react(state, event);
        state = reaction.state;
        return reaction.action;
    }
};

template <class Check>
void for_all(Check check) {
    for (int state = 0; state < kStates; ++state)
        for (int event = 0; event < kEvents; ++event)
            check(static_cast<MonitorState>(state), static_cast<MonitorEvent>(event));
}

TEST(MonitorState, ALifeWithoutFailure) {
    Machine monitor;
    EXPECT_EQ(monitor.raise(kStarted), kNone);
    EXPECT_EQ(monitor.state, kWatching);
    EXPECT_EQ(monitor.raise(kAsked), kAnswer);
    EXPECT_EQ(monitor.raise(kLeave), kSayGoodbye);
    EXPECT_EQ(monitor.raise(kEnd), kLetGo);
    EXPECT_EQ(monitor.state, kEnded);
}

TEST(MonitorState, AReportIsWrittenOnceAndAnnouncedOnce) {
    Machine monitor{kWatching};
    EXPECT_EQ(monitor.raise(kReport), kWrite);
    EXPECT_EQ(monitor.raise(kVerdict), kAnnounce);
    EXPECT_EQ(monitor.raise(kVerdict), kNone);
    EXPECT_EQ(monitor.raise(kReport), kTakeVerdict);
    EXPECT_EQ(monitor.raise(kTell), kWrite);  // of an interruption, which stood here first
    EXPECT_EQ(monitor.raise(kExit), kTellWatchers);
}

TEST(MonitorState, AnEchoWaitsForTheVerdictAndThenAsks) {
    Machine monitor{kWatching};
    EXPECT_EQ(monitor.raise(kTransportFailed), kWait);
    EXPECT_EQ(monitor.raise(kWaited), kLookAtStore);
    EXPECT_EQ(monitor.raise(kStoreAnswers), kBlameRanks);
    EXPECT_EQ(monitor.raise(kTimedOut), kLookAtStore);  // a timeout is no echo
    EXPECT_EQ(monitor.raise(kStoreSilent), kBlameStore);
    EXPECT_EQ(monitor.state, kSilent);
    EXPECT_EQ(monitor.raise(kReport), kStandHere);
    EXPECT_EQ(monitor.raise(kVerdict), kAnnounce);
    EXPECT_EQ(monitor.state, kBrokenSilent);
}

TEST(MonitorState, ALostConnectionIsExplainedBeforeTheStoreIsGone) {
    Machine monitor{kWatching};
    EXPECT_EQ(monitor.raise(kConnectionEnded), kNone);
    EXPECT_EQ(monitor.state, kLosing);
    EXPECT_EQ(monitor.raise(kTransportFailed), kWait);
    EXPECT_EQ(monitor.raise(kConnectionLost), kExplainLoss);
    EXPECT_EQ(monitor.raise(kStoreGone), kNone);
    EXPECT_EQ(monitor.raise(kWaited), kBlameRanks);
    EXPECT_EQ(monitor.raise(kLeave), kNone);
    EXPECT_EQ(monitor.raise(kExit), kNone);
}

// The monitor's thread finds out whether the store or this rank was cut off, and has time for it.
TEST(MonitorState, ALossThatIsSeenAtTheEndOfAWaitIsGivenTime) {
    Machine monitor{kWatching};
    EXPECT_EQ(monitor.raise(kTransportFailed), kWait);
    EXPECT_EQ(monitor.raise(kConnectionEnded), kNone);
    EXPECT_EQ(monitor.raise(kWaited), kLookAtStore);
    EXPECT_EQ(monitor.raise(kStoreLost), kWait);
    EXPECT_EQ(monitor.raise(kWaitedForLoss), kExplainLoss);
}

TEST(MonitorState, NobodyWaitsWhereNobodyListens) {
    Machine monitor;
    EXPECT_EQ(monitor.raise(kTransportFailed), kLookAtStore);
    EXPECT_EQ(monitor.raise(kStoreLost), kExplainLoss);
    for_all([](MonitorState state, MonitorEvent event) {
        const Reaction reaction = react(state, event);
        if (reaction.action == kWait) {
            EXPECT_TRUE(may_hear(reaction.state));
        }
    });
}

// Every state, every event.
TEST(MonitorState, TheFirstVerdictStands) {
    for_all([](MonitorState state, MonitorEvent event) {
        const auto [next, action] = react(state, event);
        if (kWithVerdict.contains(state)) {
            EXPECT_TRUE(kWithVerdict.contains(next) || next == kEnded);
            EXPECT_NE(action, kAnnounce);
        }
        EXPECT_EQ(action == kAnnounce,
                  kWithVerdict.contains(next) && !kWithVerdict.contains(state));
        EXPECT_TRUE(action != kTakeVerdict || kWithVerdict.contains(state));
    });
}

TEST(MonitorState, NothingIsDoneAfterTheEnd) {
    for_all([](MonitorState state, MonitorEvent event) {
        const auto [next, action] = react(state, event);
        if (state == kEnded) {
            EXPECT_EQ(next, kEnded);
            EXPECT_EQ(action, kNone);
        }
        EXPECT_EQ(next == kEnded, state == kEnded || event == kEnd);
    });
}

TEST(MonitorState, WithoutAStoreNothingWaitsForIt) {
    const std::set<MonitorAction> of_store{kWrite,        kLookAtStore, kWait, kSayExit,
                                           kTellWatchers, kSayGoodbye,  kLetGo};
    for_all([&](MonitorState state, MonitorEvent event) {
        const auto [next, action] = react(state, event);
        if (!kWithoutStore.contains(state)) return;
        EXPECT_TRUE(kWithoutStore.contains(next) || next == kEnded);
        EXPECT_FALSE(of_store.contains(action));
    });
}

TEST(MonitorState, EachReportHasAnAnswer) {
    for (int state = 0; state < static_cast<int>(kEnded); ++state) {
        const MonitorAction action = react(static_cast<MonitorState>(state), kReport).action;
        EXPECT_TRUE(action == kWrite || action == kStandHere || action == kTakeVerdict) << state;
        EXPECT_EQ(react(static_cast<MonitorState>(state), kAsked).action == kAnswer,
                  state != static_cast<int>(kGone) && state != static_cast<int>(kBrokenGone))
            << state;
    }
}

// A search meets whatever happens meanwhile. One wait, one look at the store and one more wait
// bound it; a monitor that starts meanwhile adds one of each.
TEST(MonitorState, ASearchEndsWhateverHappens) {
    std::mt19937 random(44);
    const auto any = [&](auto... choices) {
        const std::vector<MonitorEvent> all{choices...};
        return all[random() % all.size()];
    };
    std::set<MonitorAction> ends;
    int longest = 0;
    for (int run = 0; run < 200'000; ++run) {
        Machine monitor;
        int announced = 0;
        const auto meanwhile = [&] {
            for (auto n = random() % 3; n > 0; --n)
                announced += monitor.raise(any(kStarted, kVerdict, kReport, kTell, kAsked,
                                               kConnectionEnded, kConnectionLost, kStoreGone,
                                               kStoreSilent, kExit, kLeave)) == kAnnounce;
        };
        meanwhile();
        MonitorEvent event = any(kTransportFailed, kTimedOut);
        MonitorAction action = monitor.raise(event);
        int steps = 0;
        for (; action == kWait || action == kLookAtStore; ++steps) {
            ASSERT_LT(steps, 5);
            meanwhile();
            if (action == kLookAtStore)
                event = any(kStoreAnswers, kStoreSilent, kStoreLost);
            else
                event = event == kStoreLost ? kWaitedForLoss : kWaited;
            action = monitor.raise(event);
        }
        EXPECT_TRUE(kEndsOfSearch.contains(action));
        ends.insert(action);
        longest = std::max(longest, steps);
        monitor.raise(kVerdict);  // as each of these ends makes it one
        EXPECT_TRUE(kWithVerdict.contains(monitor.state));
        EXPECT_LE(announced, 1);
    }
    EXPECT_EQ(ends, kEndsOfSearch);
    EXPECT_GE(longest, 3);
}

}  // namespace
}  // namespace libddp
