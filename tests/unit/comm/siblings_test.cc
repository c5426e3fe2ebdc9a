// Executors whose waiters serve each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "comm/executor.h"
#include "function_operation.h"

using namespace libddp;
using namespace std::chrono_literals;

namespace {

class SiblingExecutorsTest : public testing::Test {
protected:
    void SetUp() override {
        SiblingExecutors::Members members;
        for (auto& executor : executors_) {
            executor = Executor::start(Executor::Runner::kAnyone);
            members.emplace_back(executor);
        }
        const auto siblings = std::make_shared<SiblingExecutors>(std::move(members));
        for (auto& executor : executors_) executor->join(siblings);
    }
    void TearDown() override {
        released_ = true;
        for (auto& executor : executors_) executor->stop({DDP_ERROR_ABORTED, "stopped"});
    }

    // Holds an executor's queue until release.
    WorkPtr block(Executor& executor) {
        return submit_function(executor, [this] {
            while (!released_) std::this_thread::sleep_for(1ms);
            return ErrorInfo{};
        });
    }
    static WorkPtr nothing(Executor& executor) {
        return submit_function(executor, [] { return ErrorInfo{}; });
    }

    std::shared_ptr<Executor> executors_[3];
    std::atomic<bool> released_{false};
};

TEST_F(SiblingExecutorsTest, WhoWaitsRunsTheCallbacksOfAll) {
    const auto me = std::this_thread::get_id();
    std::atomic<int> ran{0};
    std::vector<WorkPtr> held, outs;
    for (auto& executor : executors_) held.push_back(block(*executor));
    for (const auto& work : held)
        outs.push_back(work->then(
            [&](const OpTag&) -> WorkPtr {
                EXPECT_EQ(std::this_thread::get_id(), me);
                ++ran;
                return nullptr;
            },
            false, {}));
    // It has no callback itself, and is not done before those of the others are.
    auto last = submit_function(*executors_[0], [&] {
        while (ran < 3) std::this_thread::sleep_for(1ms);
        return ErrorInfo{};
    });
    std::thread releaser([&] {
        std::this_thread::sleep_for(20ms);
        released_ = true;
    });
    EXPECT_TRUE(last->wait(Deadline::after_ms(5000)));
    EXPECT_EQ(ran, 3);
    for (const auto& out : outs) EXPECT_TRUE(out->done());
    releaser.join();
}

TEST_F(SiblingExecutorsTest, PollingServesAllToo) {
    bool ran = false;
    auto held = block(*executors_[1]);
    auto out = held->then(
        [&](const OpTag&) -> WorkPtr {
            ran = true;
            return nullptr;
        },
        false, {});
    auto other = nothing(*executors_[2]);
    released_ = true;
    const auto give_up = Deadline::after_ms(5000);
    while (!ran && !give_up.expired()) other->poll();
    EXPECT_TRUE(ran);
    EXPECT_TRUE(out->wait(Deadline::after_ms(5000)));
}

TEST_F(SiblingExecutorsTest, WhoWaitsDoesNotLendItself) {
    for (int i = 0; i < 100; ++i) {
        std::thread::id seen;
        auto work = submit_function(*executors_[0], [&] {
            seen = std::this_thread::get_id();
            return ErrorInfo{};
        });
        ASSERT_TRUE(work->wait(std::nullopt));
        ASSERT_NE(seen, std::this_thread::get_id());
    }
}

TEST_F(SiblingExecutorsTest, AContinuationMayWaitForItsOwnOperations) {
    auto held = block(*executors_[1]);
    auto out = held->then(
        [&](const OpTag&) -> WorkPtr {
            EXPECT_TRUE(nothing(*executors_[1])->wait(Deadline::after_ms(5000)));
            EXPECT_TRUE(nothing(*executors_[2])->wait(Deadline::after_ms(5000)));
            return nothing(*executors_[1]);
        },
        false, {});
    released_ = true;
    EXPECT_TRUE(out->wait(Deadline::after_ms(5000)));
    EXPECT_TRUE(out->result().ok());
}

TEST_F(SiblingExecutorsTest, WaitIsBounded) {
    auto held = block(*executors_[0]);
    EXPECT_FALSE(held->wait(Deadline::after_ms(30)));
    auto mine = Work::user_completed(50);
    auto out = nothing(*executors_[1])->then([&](const OpTag&) { return mine; }, true, {});
    EXPECT_TRUE(out->wait(Deadline::after_ms(5000)));
    EXPECT_EQ(out->result().code, DDP_ERROR_TIMEOUT);
}

TEST_F(SiblingExecutorsTest, AnExpiredWorkLetsTheQueuePass) {
    OpTag tag;
    tag.order.queue = executors_[1];
    const auto mine = Work::user_completed(50);
    auto chain = mine->then([&](const OpTag&) { return nothing(*executors_[1]); }, true, tag);
    auto later = nothing(*executors_[1]);
    ASSERT_TRUE(later->wait(Deadline::after_ms(5000)));
    EXPECT_TRUE(later->result().ok());
    EXPECT_EQ(chain->result().code, DDP_ERROR_TIMEOUT);
}

TEST_F(SiblingExecutorsTest, PoisonWakesWaiters) {
    auto held = block(*executors_[0]);
    auto queued = nothing(*executors_[0]);
    std::thread breaker([&] {
        std::this_thread::sleep_for(20ms);
        executors_[0]->poison({DDP_ERROR_RANK_FAILED, "rank 1 died", 1});
    });
    EXPECT_TRUE(queued->wait(Deadline::after_ms(5000)));
    EXPECT_EQ(queued->result().rank, 1);
    breaker.join();
}

TEST_F(SiblingExecutorsTest, ManyWaitersAndSubmitters) {
    std::vector<std::thread> threads;
    std::atomic<int> done{0};
    for (std::size_t t = 0; t < 6; ++t)
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < 200; ++i) {
                auto work = nothing(*executors_[(t + i) % 3]);
                auto out =
                    work->then([](const OpTag&) -> WorkPtr { return nullptr; }, i % 2 == 0, {});
                if (out->wait(Deadline::after_ms(10'000))) ++done;
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(done, 1200);
}

}  // namespace
