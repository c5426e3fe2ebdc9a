// A queue whose operations may run only on threads that wait in a call of libddp
// (DDP_BACKEND_CALLER_THREAD).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/executor.h"
#include "function_operation.h"

using namespace libddp;
using testing::ElementsAre;
using namespace std::chrono_literals;

namespace {

class WaitingThreadTest : public testing::Test {
protected:
    void TearDown() override { executor_->stop({DDP_ERROR_ABORTED, "stopped"}); }

    // Operations that note their name, or the thread that runs them.
    std::function<ErrorInfo()> note(std::string name) {
        return [this, name] {
            ran_.push_back(name);
            return ErrorInfo{};
        };
    }
    std::function<ErrorInfo()> note_thread() {
        return [this] {
            threads_.push_back(std::this_thread::get_id());
            return ErrorInfo{};
        };
    }

    std::shared_ptr<Executor> executor_ = Executor::start(Executor::Runner::kWaitingThread);
    std::vector<std::string> ran_;
    std::vector<std::thread::id> threads_;
};

TEST_F(WaitingThreadTest, NothingRunsUnlessSomebodyWaits) {
    auto work = submit_function(*executor_, note_thread());
    auto chain = work->then(
        [this](const OpTag&) { return submit_function(*executor_, note_thread()); }, true, {});
    executor_->run_callbacks();  // as ddp_grad_ready does
    std::this_thread::sleep_for(30ms);
    EXPECT_FALSE(work->done());
    EXPECT_FALSE(executor_->idle());
    EXPECT_TRUE(chain->wait(std::nullopt));
    EXPECT_THAT(threads_, ElementsAre(std::this_thread::get_id(), std::this_thread::get_id()));
}

TEST_F(WaitingThreadTest, AWaitWithADeadlineRunsOperations) {
    auto work = submit_function(*executor_, note_thread());
    EXPECT_TRUE(work->wait(Deadline::after_ms(5000)));
    EXPECT_THAT(threads_, ElementsAre(std::this_thread::get_id()));
}

TEST_F(WaitingThreadTest, AWaitThatDoesNotLendRunsNothing) {
    auto work = submit_function(*executor_, note_thread());
    EXPECT_FALSE(work->wait(Deadline::after_ms(30), /*lend=*/false));
    EXPECT_THAT(threads_, ElementsAre());
}

TEST_F(WaitingThreadTest, PollRunsOperationsAsFarAsTheWorkInQuestion) {
    auto first = submit_function(*executor_, note("a"));
    auto second = submit_function(*executor_, note("b"));
    auto third = submit_function(*executor_, note("c"));
    second->poll();
    EXPECT_TRUE(second->done());
    EXPECT_FALSE(third->done());
    EXPECT_THAT(ran_, ElementsAre("a", "b"));
}

// A gate opens, and what follows runs, on the waiting thread too: the thread that completed the
// work may not.
TEST_F(WaitingThreadTest, WhatFollowsAWorkOfTheProgramWaitsForAWaitingThread) {
    auto mine = Work::user_completed(5000);
    OpTag tag;
    tag.order.queue = executor_;
    auto chain = mine->then(
        [this](const OpTag&) { return submit_function(*executor_, note_thread()); }, true, tag);
    std::thread([&] { mine->complete({}); }).join();
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(chain->done());
    EXPECT_TRUE(chain->wait(std::nullopt));
    EXPECT_THAT(threads_, ElementsAre(std::this_thread::get_id()));
}

TEST_F(WaitingThreadTest, OfSeveralWaitersOneRunsAtATime) {
    std::atomic<int> inside{0}, worst{0}, runs{0};
    std::vector<std::thread> waiters;
    for (int t = 0; t < 4; ++t)
        waiters.emplace_back([&] {
            for (int i = 0; i < 100; ++i)
                submit_function(*executor_, [&] {
                    worst = std::max<int>(worst, ++inside);
                    ++runs;
                    --inside;
                    return ErrorInfo{};
                })->wait(std::nullopt);
        });
    for (auto& waiter : waiters) waiter.join();
    EXPECT_EQ(runs, 400);
    EXPECT_EQ(worst, 1);
}

}  // namespace
