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
    auto outcome = state.apply(0, make(Op::kGet, {key}));
    return outcome ? outcome->values.at(0) : "(none)";
}

TEST(State, TheTotalIsLimitedAndFreedAgain) {
    StoreState state(1000);
    EXPECT_EQ(state.apply(0, make(Op::kSet, {"a"}, {std::string(600, 'x')}))->code, DDP_OK);
    auto outcome = state.apply(0, make(Op::kSet, {"b"}, {std::string(600, 'x')}));
    EXPECT_EQ(outcome->code, DDP_ERROR_LIMIT);
    EXPECT_NE(outcome->message.find("1000"), std::string::npos);
    EXPECT_FALSE(state.apply(0, make(Op::kGet, {"b"})));
    // replaces
    EXPECT_EQ(state.apply(0, make(Op::kSet, {"a"}, {std::string(700, 'x')}))->code, DDP_OK);
    EXPECT_EQ(state.apply(1, make(Op::kSetWill, {"w"}, {std::string(700, 'x')}))->code,
              DDP_ERROR_LIMIT);
    EXPECT_TRUE(state.owners().empty());
    EXPECT_EQ(state.apply(0, make(Op::kRemove, {"a"}))->number, 1);
    EXPECT_EQ(state.bytes(), 0u);
}

TEST(State, EveryByteIsGivenBack) {
    StoreState state;
    state.apply(0, make(Op::kSet, {"a"}, {"1"}));
    state.apply(0, make(Op::kSet, {"b"}, {"22"}));
    state.apply(0, make(Op::kSet, {"a"}, {"333"}));
    EXPECT_EQ(value_of(state, "a"), "333");
    state.apply(0, make(Op::kAdd, {"n"}, {}, 5));
    state.apply(0, make(Op::kCompareSet, {"b"}, {"22", "longer than before"}));
    state.apply(1, make(Op::kSetWill, {"w"}, {"x"}));
    state.apply(1, make(Op::kSetWill, {"w"}, {"other"}));
    state.apply(1, make(Op::kSetWill, {"a"}, {"exists already"}));
    EXPECT_EQ(state.end_owner(1), Strings{"w"});
    EXPECT_EQ(value_of(state, "w"), "other");
    for (const char* key : {"a", "b", "n", "w"}) state.apply(0, make(Op::kRemove, {key}));
    EXPECT_EQ(state.bytes(), 0u);
}

TEST(State, WillsDoNotReplaceAndOwnersAreKnown) {
    StoreState state;
    state.apply(0, make(Op::kSet, {"taken"}, {"first"}));
    state.apply(7, make(Op::kSetWill, {"taken"}, {"will"}));
    state.apply(7, make(Op::kSetWill, {"free"}, {"will"}));
    state.apply(8, make(Op::kSetWill, {"gone"}, {"will"}));
    EXPECT_EQ(state.owners(), (std::set<std::uint64_t>{7, 8}));
    state.apply(8, make(Op::kRemoveWill, {"gone"}));
    EXPECT_EQ(state.owners(), std::set<std::uint64_t>{7});
    EXPECT_EQ(state.end_owner(7), Strings{"free"});
    EXPECT_TRUE(state.end_owner(8).empty());
    EXPECT_EQ(value_of(state, "taken"), "first");
    EXPECT_EQ(value_of(state, "free"), "will");
}

TEST(State, AWillMayDependOnWhoHoldsAKey) {
    StoreState state;
    state.apply(7, make(Op::kSetWill, {"dead/1", "rank/1"}, {"1 died", "me"}));
    state.apply(8, make(Op::kSetWill, {"dead/2", "rank/2"}, {"2 died", "me"}));
    state.apply(9, make(Op::kSetWill, {"dead/3", "rank/3"}, {"3 died", "me"}));
    state.apply(7, make(Op::kCompareSet, {"rank/1"}, {"", "me"}));
    state.apply(0, make(Op::kCompareSet, {"rank/2"}, {"", "another process"}));

    StoreState copy;  // conditions are part of a snapshot
    state.snapshot(
        [&](std::uint64_t owner, const Request& request) { copy.apply(owner, request); });
    for (StoreState* each : {&state, &copy}) {
        EXPECT_EQ(each->end_owner(7), Strings{"dead/1"});
        EXPECT_TRUE(each->end_owner(8).empty());
        EXPECT_TRUE(each->end_owner(9).empty());
        EXPECT_EQ(value_of(*each, "dead/1"), "1 died");
        for (const char* key : {"rank/1", "rank/2", "dead/1"})
            each->apply(0, make(Op::kRemove, {key}));
        EXPECT_EQ(each->bytes(), 0u);
    }
}

TEST(State, ASnapshotRebuildsEverything) {
    StoreState state;
    state.apply(0, make(Op::kSet, {"a"}, {"1"}));
    state.apply(0, make(Op::kSet, {"b"}, {""}));
    state.apply(3, make(Op::kSetWill, {"w"}, {"v"}));

    StoreState copy;
    state.snapshot(
        [&](std::uint64_t owner, const Request& request) { copy.apply(owner, request); });
    EXPECT_EQ(copy.bytes(), state.bytes());
    EXPECT_EQ(copy.owners(), state.owners());
    EXPECT_EQ(value_of(copy, "b"), "");
    EXPECT_EQ(copy.end_owner(3), Strings{"w"});
}

}  // namespace
}  // namespace libddp
