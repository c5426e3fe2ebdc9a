#include "rendezvous/wait_list.h"

#include <gtest/gtest.h>

namespace libddp {
namespace {

class WaitListTest : public ::testing::Test {
protected:
    void submit(Caller caller, Op op, Strings keys, Strings values = {}, std::int64_t timeout_ms = 1000,
                std::int64_t number = 0) {
        Request request;
        request.op = op;
        request.keys = std::move(keys);
        request.values = std::move(values);
        request.timeout_ms = timeout_ms;
        request.number = number;
        accepted = list.submit(caller, std::move(request), now);
    }
    bool answered(Caller caller) const { return answers.count(caller) != 0; }

    WaitList::Time now{};
    std::map<Caller, Outcome> answers;
    std::vector<Caller> order;
    bool accepted = false;
    WaitList list{[this](Caller caller, const Outcome& outcome) {
        answers[caller] = outcome;
        order.push_back(caller);
    }};
};

TEST_F(WaitListTest, AWaitForSeveralKeysEndsWithTheLast) {
    submit({1, 1}, Op::kMultiGet, {"a", "b", "c"});
    submit({2, 1}, Op::kSet, {"c"}, {"3"});
    submit({2, 2}, Op::kSet, {"a"}, {"1"});
    EXPECT_FALSE(answered({1, 1}));
    submit({2, 3}, Op::kRemove, {"a"});  // seen already, and gone again
    submit({2, 4}, Op::kSet, {"b"}, {"2"});
    EXPECT_FALSE(answered({1, 1}));
    submit({2, 5}, Op::kSet, {"a"}, {"4"});
    ASSERT_TRUE(answered({1, 1}));
    EXPECT_EQ((answers[{1, 1}].values), (Strings{"4", "2", "3"}));
    EXPECT_EQ(list.waiting(), 0u);
    EXPECT_FALSE(list.next_deadline());
}

// Otherwise waits for many long keys would cost memory that nothing bounds.
TEST(WaitListMemory, WaitsCount) {
    std::map<Caller, Outcome> answers;
    WaitList list([&](Caller caller, const Outcome& outcome) { answers[caller] = outcome; }, 100'000);
    std::uint64_t number = 0;
    auto wait = [&](Op op) {
        Request request;
        request.op = op;
        request.keys.assign(op == Op::kBarrier ? 1 : 10, std::string(1000, 'k'));
        request.number = 1'000'000;
        request.timeout_ms = 1000;
        list.submit({1, ++number}, std::move(request), {});
        return answers.count({1, number}) == 0;
    };
    while (wait(Op::kMultiGet)) ASSERT_LT(number, 20u);
    EXPECT_EQ((answers[{1, number}].code), DDP_ERROR_LIMIT);
    EXPECT_GT(number, 5u);
    const std::size_t waiting = list.waiting();
    while (wait(Op::kBarrier)) {
    }
    const std::size_t at_barrier = list.waiting() - waiting;
    // A refused arrival does not stay at the barrier, and an end of any kind gives the memory back.
    list.cancel({1, 1});
    EXPECT_TRUE(wait(Op::kMultiGet));
    list.expire(WaitList::Time() + std::chrono::milliseconds(2000));
    EXPECT_EQ(list.waiting(), 0u);
    for (std::size_t i = 0; i < waiting; ++i) EXPECT_TRUE(wait(Op::kMultiGet));
    list.end_owner(1);
    for (std::size_t i = 0; i < waiting + at_barrier; ++i) wait(Op::kBarrier);
    EXPECT_GE(list.waiting(), at_barrier);
    list.end_owner(1);
    for (std::size_t i = 0; i < waiting; ++i) EXPECT_TRUE(wait(Op::kMultiGet));
}

TEST_F(WaitListTest, TimeoutsComeInOrderAndNameTheKey) {
    submit({1, 1}, Op::kWait, {"late"}, {}, 300);
    submit({1, 2}, Op::kWait, {"early"}, {}, 100);
    submit({1, 3}, Op::kGet, {"never"}, {}, kForever);
    submit({1, 4}, Op::kWait, {"now"}, {}, kNoWait);
    EXPECT_EQ((answers[{1, 4}].code), DDP_ERROR_TIMEOUT);
    EXPECT_EQ(*list.next_deadline(), now + std::chrono::milliseconds(100));
    list.expire(now + std::chrono::milliseconds(299));
    EXPECT_EQ((answers[{1, 2}].code), DDP_ERROR_TIMEOUT);
    EXPECT_NE((answers[{1, 2}].message.find("'early'")), std::string::npos);
    EXPECT_NE((answers[{1, 2}].message.find("100 ms")), std::string::npos);
    EXPECT_FALSE(answered({1, 1}));
    list.expire(now + std::chrono::milliseconds(300));
    EXPECT_TRUE(answered({1, 1}));
    EXPECT_EQ(list.waiting(), 1u);
    EXPECT_FALSE(list.next_deadline());
}

TEST_F(WaitListTest, QueueElementsGoToTheLongestWaiting) {
    submit({1, 1}, Op::kQueuePop, {"q"});
    submit({2, 1}, Op::kQueuePop, {"q"});
    submit({3, 1}, Op::kQueuePush, {"q"}, {"x"});
    EXPECT_EQ((answers[{1, 1}].values), Strings{"x"});
    EXPECT_FALSE(answered({2, 1}));
    list.end_owner(2);
    submit({3, 2}, Op::kQueuePush, {"q"}, {"y"});
    submit({3, 3}, Op::kQueueSize, {"q"});
    EXPECT_EQ((answers[{3, 3}].number), 1);  // nobody waited any more
}

TEST_F(WaitListTest, ABarrierReleasesAllAndForgetsThoseThatLeft) {
    submit({1, 1}, Op::kBarrier, {"m"}, {}, 1000, 3);
    submit({2, 1}, Op::kBarrier, {"m"}, {}, 10, 3);
    submit({3, 1}, Op::kBarrier, {"m"}, {}, 1000, 3);
    EXPECT_EQ((answers[{3, 1}].code), DDP_OK);
    EXPECT_EQ(order.size(), 3u);
    submit({1, 2}, Op::kBarrier, {"m"}, {}, 10, 2);
    list.expire(now + std::chrono::milliseconds(10));
    EXPECT_NE((answers[{1, 2}].message.find("1 of 2")), std::string::npos);
    submit({2, 2}, Op::kBarrier, {"m"}, {}, kNoWait, 2);
    EXPECT_EQ((answers[{2, 2}].code), DDP_ERROR_TIMEOUT);
    submit({2, 3}, Op::kBarrier, {"m"}, {}, 1000, 2);
    list.cancel({2, 3});
    submit({3, 3}, Op::kBarrier, {"m"}, {}, 1000, 2);
    EXPECT_FALSE(answered({3, 3}));
    EXPECT_FALSE(answered({2, 3}));
}

TEST_F(WaitListTest, WillsWakeWaits) {
    submit({1, 1}, Op::kSetWill, {"dead/1"}, {"x"});
    submit({2, 1}, Op::kGet, {"dead/1"}, {}, kForever);
    list.end_owner(1);
    EXPECT_EQ((answers[{2, 1}].values), Strings{"x"});
}

TEST_F(WaitListTest, ARequestNumberTwiceIsRefused) {
    submit({1, 1}, Op::kGet, {"a"});
    EXPECT_TRUE(accepted);
    submit({1, 1}, Op::kGet, {"b"});
    EXPECT_FALSE(accepted);
}

}  // namespace
}  // namespace libddp
