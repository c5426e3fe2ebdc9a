#include "rendezvous/wait_list.h"

#include <gtest/gtest.h>

namespace libddp {
namespace {

class WaitListTest : public ::testing::Test {
protected:
    void submit(Caller caller, Op op, Strings keys, Strings values = {},
                std::int64_t timeout_ms = 1000) {
        accepted = list.submit(caller,
                               Request{op, std::move(keys), std::move(values), 0, timeout_ms}, now);
    }
    bool answered(Caller caller) const { return answers.count(caller) != 0; }

    WaitList::Time now{};
    std::map<Caller, Outcome> answers;
    bool accepted = false;
    WaitList list{[this](Caller caller, const Outcome& outcome) { answers[caller] = outcome; }};
};

TEST_F(WaitListTest, AWaitForSeveralKeysEndsWithTheLast) {
    submit({1, 1}, Op::kWait, {"a", "b", "c"});
    submit({2, 1}, Op::kSet, {"c"}, {"3"});
    submit({2, 2}, Op::kSet, {"a"}, {"1"});
    EXPECT_FALSE(answered({1, 1}));
    submit({2, 3}, Op::kRemove, {"a"});  // seen already, and gone again
    submit({2, 4}, Op::kSet, {"b"}, {"2"});
    EXPECT_FALSE(answered({1, 1}));
    submit({2, 5}, Op::kSet, {"a"}, {"4"});
    ASSERT_TRUE(answered({1, 1}));
    EXPECT_EQ((answers[{1, 1}].code), DDP_OK);
    EXPECT_EQ(list.waiting(), 0u);
    EXPECT_FALSE(list.next_deadline());
}

// Otherwise waits for many long keys would cost memory that nothing bounds.
TEST(WaitListMemory, WaitsCount) {
    std::map<Caller, Outcome> answers;
    WaitList list([&](Caller caller, const Outcome& outcome) { answers[caller] = outcome; },
                  100'000);
    std::uint64_t number = 0;
    auto wait = [&] {
        list.submit({1, ++number},
                    Request{Op::kWait, Strings(10, std::string(1000, 'k')), {}, 0, 1000}, {});
        return answers.count({1, number}) == 0;
    };
    while (wait()) ASSERT_LT(number, 20u);
    EXPECT_EQ((answers[{1, number}].code), DDP_ERROR_LIMIT);
    EXPECT_GT(number, 5u);
    const std::size_t waiting = list.waiting();
    // An end of any kind gives the memory back.
    list.cancel({1, 1});
    EXPECT_TRUE(wait());
    list.expire(WaitList::Time() + std::chrono::milliseconds(2000));
    EXPECT_EQ(list.waiting(), 0u);
    for (std::size_t i = 0; i < waiting; ++i) EXPECT_TRUE(wait());
    list.end_owner(1);
    for (std::size_t i = 0; i < waiting; ++i) EXPECT_TRUE(wait());
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
