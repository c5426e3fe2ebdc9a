#include <gtest/gtest.h>

#include "rendezvous/store_state.h"

namespace libddp {
namespace {

Request make(Op op, Strings keys = {}, Strings values = {}, std::int64_t number = 0) {
    Request request;
    request.op = op;
    request.keys = std::move(keys);
    request.values = std::move(values);
    request.number = number;
    return request;
}

std::string value_of(StoreState& state, const std::string& key) {
    auto outcome = state.apply({}, make(Op::kGet, {key}));
    return outcome ? outcome->values.at(0) : "(none)";
}

TEST(State, TheTotalIsLimitedAndFreedAgain) {
    StoreState state(1000);
    EXPECT_EQ(state.apply({}, make(Op::kSet, {"a"}, {std::string(600, 'x')}))->code, DDP_OK);
    auto outcome = state.apply({}, make(Op::kSet, {"b"}, {std::string(600, 'x')}));
    EXPECT_EQ(outcome->code, DDP_ERROR_LIMIT);
    EXPECT_NE(outcome->message.find("1000"), std::string::npos);
    EXPECT_FALSE(state.apply({}, make(Op::kGet, {"b"})));
    EXPECT_EQ(state.apply({}, make(Op::kSet, {"a"}, {std::string(700, 'x')}))->code, DDP_OK);  // replaces
    EXPECT_EQ(state.apply({}, make(Op::kAppend, {"a"}, {std::string(700, 'x')}))->code, DDP_ERROR_LIMIT);
    EXPECT_EQ(state.apply({}, make(Op::kQueuePush, {"q"}, {std::string(700, 'x')}))->code, DDP_ERROR_LIMIT);
    EXPECT_EQ(state.apply({1, 1}, make(Op::kSetWill, {"w"}, {std::string(700, 'x')}))->code, DDP_ERROR_LIMIT);
    EXPECT_TRUE(state.owners().empty());
    EXPECT_EQ(state.apply({}, make(Op::kRemove, {"a"}))->number, 1);
    EXPECT_EQ(state.bytes(), 0u);
}

TEST(State, EveryByteIsGivenBack) {
    StoreState state;
    state.apply({}, make(Op::kMultiSet, {"a", "b", "a"}, {"1", "22", "333"}));
    EXPECT_EQ(value_of(state, "a"), "333");
    state.apply({}, make(Op::kAppend, {"a"}, {"4"}));
    state.apply({}, make(Op::kAdd, {"n"}, {}, 5));
    state.apply({}, make(Op::kCompareSet, {"b"}, {"22", "longer than before"}));
    state.apply({}, make(Op::kQueuePush, {"q"}, {"x"}));
    state.apply({}, make(Op::kQueuePop, {"q"}));
    state.apply({1, 1}, make(Op::kSetWill, {"w"}, {"x"}));
    state.apply({1, 1}, make(Op::kSetWill, {"w"}, {"other"}));
    state.apply({1, 2}, make(Op::kSetWill, {"a"}, {"exists already"}));
    state.apply({1, 3}, make(Op::kBarrier, {"m"}, {}, 3));
    state.apply({2, 3}, make(Op::kBarrier, {"m"}, {}, 3));
    state.withdraw({2, 3});
    EXPECT_EQ(state.end_owner(1), Strings{"w"});
    EXPECT_EQ(value_of(state, "w"), "other");
    for (const char* key : {"a", "b", "n", "w"}) state.apply({}, make(Op::kRemove, {key}));
    EXPECT_EQ(state.bytes(), 0u);
}

TEST(State, MultiSetIsAllOrNone) {
    StoreState state(500);
    auto outcome = state.apply({}, make(Op::kMultiSet, {"a", "b"}, {"1", std::string(600, 'x')}));
    EXPECT_EQ(outcome->code, DDP_ERROR_LIMIT);
    EXPECT_EQ(state.apply({}, make(Op::kNumKeys))->number, 0);
}

TEST(State, BarrierCountsCallers) {
    StoreState state;
    EXPECT_FALSE(state.apply({1, 1}, make(Op::kBarrier, {"m"}, {}, 2)));
    EXPECT_FALSE(state.apply({1, 1}, make(Op::kBarrier, {"m"}, {}, 2)));  // the same arrival again
    EXPECT_TRUE(state.waits_at("m", {1, 1}));
    EXPECT_EQ(state.apply({2, 1}, make(Op::kBarrier, {"m"}, {}, 3))->code, DDP_ERROR_MISMATCH);
    EXPECT_EQ(state.apply({2, 2}, make(Op::kBarrier, {"m"}, {}, 2))->code, DDP_OK);
    EXPECT_FALSE(state.waits_at("m", {1, 1}));
    EXPECT_EQ(state.bytes(), 0u);
    EXPECT_FALSE(state.apply({1, 2}, make(Op::kBarrier, {"m"}, {}, 2)));  // the name can be used again
    state.end_owner(1);
    EXPECT_FALSE(state.apply({2, 3}, make(Op::kBarrier, {"m"}, {}, 2)));  // the dead do not count
}

TEST(State, WillsDoNotReplaceAndOwnersAreKnown) {
    StoreState state;
    state.apply({}, make(Op::kSet, {"taken"}, {"first"}));
    state.apply({7, 1}, make(Op::kSetWill, {"taken"}, {"will"}));
    state.apply({7, 2}, make(Op::kSetWill, {"free"}, {"will"}));
    state.apply({8, 2}, make(Op::kSetWill, {"gone"}, {"will"}));
    EXPECT_EQ(state.owners(), (std::set<std::uint64_t>{7, 8}));
    state.apply({8, 3}, make(Op::kRemoveWill, {"gone"}));
    EXPECT_EQ(state.owners(), std::set<std::uint64_t>{7});
    EXPECT_EQ(state.end_owner(7), Strings{"free"});
    EXPECT_TRUE(state.end_owner(8).empty());
    EXPECT_EQ(value_of(state, "taken"), "first");
    EXPECT_EQ(value_of(state, "free"), "will");
}

TEST(State, AWillMayDependOnWhoHoldsAKey) {
    StoreState state;
    state.apply({7, 1}, make(Op::kSetWill, {"dead/1", "rank/1"}, {"1 died", "me"}));
    state.apply({8, 1}, make(Op::kSetWill, {"dead/2", "rank/2"}, {"2 died", "me"}));
    state.apply({9, 1}, make(Op::kSetWill, {"dead/3", "rank/3"}, {"3 died", "me"}));
    state.apply({7, 2}, make(Op::kCompareSet, {"rank/1"}, {"", "me"}));
    state.apply({}, make(Op::kCompareSet, {"rank/2"}, {"", "another process"}));

    StoreState copy;  // conditions are part of a snapshot
    state.snapshot([&](Caller caller, const Request& request) { copy.apply(caller, request); });
    for (StoreState* each : {&state, &copy}) {
        EXPECT_EQ(each->end_owner(7), Strings{"dead/1"});
        EXPECT_TRUE(each->end_owner(8).empty());
        EXPECT_TRUE(each->end_owner(9).empty());
        EXPECT_EQ(value_of(*each, "dead/1"), "1 died");
        for (const char* key : {"rank/1", "rank/2", "dead/1"}) each->apply({}, make(Op::kRemove, {key}));
        EXPECT_EQ(each->bytes(), 0u);
    }
}

TEST(State, ASnapshotRebuildsEverything) {
    StoreState state;
    state.apply({}, make(Op::kMultiSet, {"a", "b"}, {"1", ""}));
    state.apply({}, make(Op::kQueuePush, {"q"}, {"x"}));
    state.apply({}, make(Op::kQueuePush, {"q"}, {"y"}));
    state.apply({3, 1}, make(Op::kSetWill, {"w"}, {"v"}));
    state.apply({4, 9}, make(Op::kBarrier, {"m"}, {}, 3));
    state.apply({5, 9}, make(Op::kBarrier, {"m"}, {}, 3));

    StoreState copy;
    state.snapshot([&](Caller caller, const Request& request) { copy.apply(caller, request); });
    EXPECT_EQ(copy.bytes(), state.bytes());
    EXPECT_EQ(copy.owners(), state.owners());
    EXPECT_EQ(value_of(copy, "b"), "");
    EXPECT_EQ(copy.apply({}, make(Op::kQueuePop, {"q"}))->values.at(0), "x");
    EXPECT_EQ(copy.apply({}, make(Op::kQueuePop, {"q"}))->values.at(0), "y");
    EXPECT_TRUE(copy.waits_at("m", {4, 9}));
    EXPECT_EQ(copy.end_owner(3), Strings{"w"});
}

TEST(State, AnswersThatCannotBeSentAreNotBuilt) {
    StoreState state;
    state.apply({}, make(Op::kSet, {"big"}, {std::string(limits::kValue, 'x')}));
    EXPECT_EQ(state.apply({}, make(Op::kMultiGet, Strings(1000, "big")))->code, DDP_ERROR_LIMIT);
}

}  // namespace
}  // namespace libddp
