// The queue of a group: order, chains, lending, which thread runs what, failure.
#include "comm/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "function_operation.h"
#include "util/interrupt.h"

using namespace libddp;
using testing::ElementsAre;
using namespace std::chrono_literals;

namespace {

using Runner = Executor::Runner;

class ExecutorTest : public testing::TestWithParam<Runner> {
protected:
    void SetUp() override { executor_ = Executor::start(GetParam()); }
    void TearDown() override { executor_->stop({DDP_ERROR_ABORTED, "stopped"}); }

    // An operation that notes its name; the queue runs one at a time, so no lock is needed.
    std::function<ErrorInfo()> note(std::string name) {
        return [this, name] {
            ran_.push_back(name);
            return ErrorInfo{};
        };
    }
    // One that holds the queue until release().
    WorkPtr block() {
        auto work = submit_function(*executor_, [this] {
            holding_ = true;
            while (!released_) std::this_thread::sleep_for(1ms);
            return ErrorInfo{};
        });
        return work;
    }
    void release() { released_ = true; }
    // Where no progress thread runs operations, another thread that waits does.
    std::thread wait_elsewhere(const WorkPtr& work) {
        return std::thread([work] { work->wait(std::nullopt); });
    }

    std::shared_ptr<Executor> executor_;
    std::vector<std::string> ran_;
    std::atomic<bool> released_{false}, holding_{false};
};

INSTANTIATE_TEST_SUITE_P(Runners, ExecutorTest,
                         testing::Values(Runner::kAnyone, Runner::kProgressThread,
                                         Runner::kWaitingThread),
                         [](const auto& test) {
                             return test.param == Runner::kAnyone           ? "Anyone"
                                    : test.param == Runner::kProgressThread ? "ProgressThread"
                                                                            : "WaitingThread";
                         });

TEST_P(ExecutorTest, RunsInOrder) {
    std::vector<WorkPtr> works;
    for (int i = 0; i < 50; ++i)
        works.push_back(submit_function(*executor_, note(std::to_string(i))));
    ASSERT_TRUE(works.back()->wait(Deadline::after_ms(5000)));
    for (int i = 0; i < 50; ++i) EXPECT_EQ(ran_[static_cast<std::size_t>(i)], std::to_string(i));
}

TEST_P(ExecutorTest, AChainRunsBeforeWhatWasQueuedAfterIt) {
    for (bool any_thread : {true, false}) {
        ran_.clear();
        released_ = false;
        auto hold = block();
        auto first = submit_function(*executor_, note("a1"));
        auto chain = first->then(
            [&](const OpTag&) {
                auto second = submit_function(*executor_, note("a2"));
                return second->then(
                    [&](const OpTag&) { return submit_function(*executor_, note("a3")); },
                    any_thread, {});
            },
            any_thread, {});
        auto later = submit_function(*executor_, note("b"));
        if (!any_thread) std::this_thread::sleep_for(20ms);
        release();
        ASSERT_TRUE(later->wait(Deadline::after_ms(5000)));
        ASSERT_TRUE(chain->wait(Deadline::after_ms(5000)));
        EXPECT_TRUE(chain->result().ok());
        EXPECT_THAT(ran_, ElementsAre("a1", "a2", "a3", "b"));
    }
}

// The objects of an operation go when the executor has stopped, whichever thread runs it.
TEST_P(ExecutorTest, StoppingWaitsForAnOperationThatIsUnderWay) {
    std::atomic<bool> ended{false};
    auto work = submit_function(*executor_, [&] {
        holding_ = true;
        while (!released_) std::this_thread::sleep_for(1ms);
        std::this_thread::sleep_for(20ms);
        ended = true;
        return ErrorInfo{};
    });
    std::thread waiting = wait_elsewhere(work);
    while (!holding_) std::this_thread::sleep_for(1ms);
    std::thread releasing([&] {
        std::this_thread::sleep_for(20ms);
        release();
    });
    executor_->stop({DDP_ERROR_ABORTED, "stopped"});
    EXPECT_TRUE(ended);
    releasing.join();
    waiting.join();
}

TEST_P(ExecutorTest, SeveralOperationsOfOneContinuationKeepTheirOrder) {
    auto hold = block();
    auto chain = submit_function(*executor_, note("a"))
                     ->then(
                         [&](const OpTag&) {
                             submit_function(*executor_, note("a1"));
                             submit_function(*executor_, note("a2"));
                             return submit_function(*executor_, note("a3"));
                         },
                         true, {});
    auto later = submit_function(*executor_, note("b"));
    release();
    ASSERT_TRUE(later->wait(Deadline::after_ms(5000)));
    EXPECT_THAT(ran_, ElementsAre("a", "a1", "a2", "a3", "b"));
    EXPECT_TRUE(chain->done());
}

TEST_P(ExecutorTest, ContinuationsStayOnThreadsInsideALibddpCall) {
    auto me = std::this_thread::get_id();
    std::thread::id seen;
    auto hold = block();  // or "a" may be done so early that then() itself runs the continuation
    auto out = submit_function(*executor_, note("a"))
                   ->then(
                       [&](const OpTag&) -> WorkPtr {
                           seen = std::this_thread::get_id();
                           return nullptr;
                       },
                       false, {});
    release();
    std::this_thread::sleep_for(20ms);
    EXPECT_FALSE(out->done()) << "the progress thread may not run it";
    ASSERT_TRUE(out->wait(Deadline::after_ms(5000)));
    EXPECT_EQ(seen, me);
}

// A rank that frees its group right after its last collective must not be taken for one that
// interrupts it.
TEST_P(ExecutorTest, IsIdleAsSoonAsTheLastWorkIsDone) {
    auto hold = block();
    std::atomic<bool> busy{true};
    auto last = submit_function(*executor_, note("a"));
    auto after = last->then(
        [&](const OpTag&) -> WorkPtr {
            while (busy) std::this_thread::sleep_for(1ms);
            return nullptr;
        },
        true, {});
    EXPECT_FALSE(executor_->idle());
    release();
    auto helper = wait_elsewhere(after);
    const auto give_up = Deadline::after_ms(5000);
    while (!last->done() && !give_up.expired()) std::this_thread::yield();
    EXPECT_TRUE(executor_->idle());
    busy = false;
    EXPECT_TRUE(after->wait(Deadline::after_ms(5000)));
    helper.join();
}

TEST_P(ExecutorTest, PollRunsContinuationsToo) {
    auto out = submit_function(*executor_, note("a"))
                   ->then([](const OpTag&) -> WorkPtr { return nullptr; }, false, {});
    auto deadline = Deadline::after_ms(5000);
    while (!out->done() && !deadline.expired()) out->poll();
    EXPECT_TRUE(out->done());
}

TEST_P(ExecutorTest, ErrorsSkipContinuationsAndTravelAlong) {
    bool called = false;
    auto out = submit_function(*executor_,
                               [] {
                                   return ErrorInfo{DDP_ERROR_TIMEOUT, "late", 3};
                               })
                   ->then(
                       [&](const OpTag&) -> WorkPtr {
                           called = true;
                           return nullptr;
                       },
                       true, {})
                   ->then([](const OpTag&) -> WorkPtr { return nullptr; }, false, {});
    ASSERT_TRUE(out->wait(Deadline::after_ms(5000)));
    EXPECT_EQ(out->result().code, DDP_ERROR_TIMEOUT);
    EXPECT_EQ(out->result().rank, 3);
    EXPECT_FALSE(called);
}

TEST_P(ExecutorTest, AThrowingContinuationFailsItsResult) {
    auto out =
        submit_function(*executor_, note("a"))
            ->then([](const OpTag&) -> WorkPtr { fail(DDP_ERROR_CALLBACK, "no"); }, false, {});
    ASSERT_TRUE(out->wait(Deadline::after_ms(5000)));
    EXPECT_EQ(out->result().message, "no");
}

TEST_P(ExecutorTest, AContinuationMayWaitForItsOwnOperations) {
    if (GetParam() == Runner::kProgressThread)
        GTEST_SKIP() << "operations are bound to the progress thread";
    auto out = submit_function(*executor_, note("a"))
                   ->then(
                       [&](const OpTag&) -> WorkPtr {
                           auto inner = submit_function(*executor_, note("a1"));
                           EXPECT_TRUE(inner->wait(Deadline::after_ms(5000)));
                           return submit_function(*executor_, note("a2"));
                       },
                       false, {});
    auto later = submit_function(*executor_, note("b"));
    ASSERT_TRUE(later->wait(Deadline::after_ms(5000)));
    ASSERT_TRUE(out->wait(Deadline::after_ms(5000)));
    EXPECT_THAT(ran_, ElementsAre("a", "a1", "a2", "b"));
}

TEST_P(ExecutorTest, WaitIsBounded) {
    auto hold = block();
    auto helper = wait_elsewhere(hold);
    while (!holding_) std::this_thread::yield();
    auto work = submit_function(*executor_, note("a"));
    EXPECT_FALSE(work->wait(Deadline::after_ms(30)));
    release();
    EXPECT_TRUE(work->wait(Deadline::after_ms(5000)));
    helper.join();
}

TEST_P(ExecutorTest, UserCompletedWorkBoundsTheChainThatWaitsForIt) {
    auto mine = Work::user_completed(50);
    auto out =
        submit_function(*executor_, note("a"))->then([&](const OpTag&) { return mine; }, true, {});
    ASSERT_TRUE(out->wait(Deadline::after_ms(5000)));
    EXPECT_EQ(out->result().code, DDP_ERROR_TIMEOUT);
    auto good = Work::user_completed(5000);
    auto second =
        submit_function(*executor_, note("b"))->then([&](const OpTag&) { return good; }, true, {});
    std::thread completer([&] { good->complete({}); });
    EXPECT_TRUE(second->wait(Deadline::after_ms(5000)));
    EXPECT_TRUE(second->result().ok());
    completer.join();
}

// The program has let go of its work: nobody can complete it, and who waits still gets its timeout.
TEST_P(ExecutorTest, AWorkThatNobodyHasAnyMoreBoundsWhatFollowsIt) {
    const auto nothing = [](const OpTag&) -> WorkPtr { return nullptr; };
    OpTag in_order;
    in_order.order.queue = executor_;
    std::vector<WorkPtr> outs;
    outs.push_back(submit_function(*executor_, note("a"))
                       ->then([](const OpTag&) { return Work::user_completed(50); }, true, {}));
    outs.push_back(outs.back()->then(nothing, true, {}));
    outs.push_back(Work::user_completed(50)->then(nothing, true, {}));
    outs.push_back(Work::user_completed(50)->then(nothing, true, {})->then(nothing, true, {}));
    outs.push_back(Work::user_completed(50)->then(nothing, true, in_order));
    for (const auto& out : outs) {
        ASSERT_TRUE(out->wait(Deadline::after_ms(5000)));
        EXPECT_EQ(out->result().code, DDP_ERROR_TIMEOUT);
        EXPECT_FALSE(out->is_user_completed());
    }
}

TEST_P(ExecutorTest, AnExpiredWorkLetsTheQueuePass) {
    for (const bool kept : {true, false})
        for (const bool polled : {true, false}) {
            ran_.clear();
            OpTag tag;
            tag.order.queue = executor_;
            auto mine = Work::user_completed(50);
            auto chain = mine->then(
                [&](const OpTag&) { return submit_function(*executor_, note("a")); }, true, tag);
            if (!kept) mine = nullptr;
            auto later = submit_function(*executor_, note("b"));
            const auto give_up = Deadline::after_ms(5000);
            while (polled && !later->done() && !give_up.expired()) later->poll();
            ASSERT_TRUE(later->wait(give_up)) << kept << polled;
            EXPECT_TRUE(later->result().ok());
            EXPECT_EQ(chain->result().code, DDP_ERROR_TIMEOUT);
            EXPECT_THAT(ran_, ElementsAre("b"));
        }
}

TEST_P(ExecutorTest, AnExpiredWorkLetsPassWhatAnotherWaitLeadsTo) {
    OpTag tag;
    tag.order.queue = executor_;
    const auto mine = Work::user_completed(50), first = Work::user_completed(5000);
    auto chain = mine->then([](const OpTag&) -> WorkPtr { return nullptr; }, true, tag);
    auto out =
        first->then([&](const OpTag&) { return submit_function(*executor_, note("b")); }, true, {});
    first->complete({});
    ASSERT_TRUE(out->wait(Deadline::after_ms(5000)));
    EXPECT_TRUE(out->result().ok());
    EXPECT_THAT(ran_, ElementsAre("b"));
}

// A continuation of another group's operation stops that group's queue until such a thread runs it;
// nobody waits there.
TEST_P(ExecutorTest, AWaitRunsContinuationsInAnotherGroup) {
    const auto other = Executor::start(GetParam());
    const auto chain = [&] {
        return submit_function(*executor_, note("a"))
            ->then(
                [&](const OpTag&) {
                    const auto slow = submit_function(*other, [] {
                        std::this_thread::sleep_for(50ms);
                        return ErrorInfo{};
                    });
                    return slow->then(
                        [&](const OpTag&) { return submit_function(*executor_, note("b")); }, false,
                        {});
                },
                false, {});
    };
    const WorkPtr waited = chain();
    ASSERT_TRUE(waited->wait(Deadline::after_ms(5000)));
    const WorkPtr polled = chain();
    for (const auto give_up = Deadline::after_ms(5000); !polled->done() && !give_up.expired();)
        polled->poll();
    ASSERT_TRUE(polled->done());
    const WorkPtr mine = Work::user_completed(5000);
    const WorkPtr followed = mine->then([&](const OpTag&) { return chain(); }, false, {});
    mine->complete({});
    ASSERT_TRUE(followed->wait(Deadline::after_ms(5000)));
    for (const auto& out : {waited, polled, followed}) EXPECT_TRUE(out->result().ok());
    EXPECT_THAT(ran_, ElementsAre("a", "b", "a", "b", "a", "b"));
    other->stop({DDP_ERROR_ABORTED, "stopped"});
}

// A gate here waits for an operation there, which a gate with a deadline holds up.
TEST_P(ExecutorTest, AnExpiredWorkInAnotherGroupLetsTheQueuePass) {
    const auto other = Executor::start(GetParam());
    OpTag here, there;
    here.order.queue = executor_;
    there.order.queue = other;
    const auto nothing = [](const OpTag&) -> WorkPtr { return nullptr; };
    const auto late = Work::user_completed(50), first = Work::user_completed(5000),
               second = Work::user_completed(5000);
    const auto held = late->then(nothing, true, there);
    const auto behind =
        first->then([&](const OpTag&) { return submit_function(*other, note("b")); }, true, {});
    first->complete({});
    const auto gate = second->then([&](const OpTag&) { return behind; }, true, here);
    second->complete({});
    const auto later = submit_function(*executor_, note("a"));
    ASSERT_TRUE(later->wait(Deadline::after_ms(5000)));
    ASSERT_TRUE(gate->wait(Deadline::after_ms(5000)));
    EXPECT_EQ(held->result().code, DDP_ERROR_TIMEOUT);
    EXPECT_THAT(ran_, testing::UnorderedElementsAre("a", "b"));
    other->stop({DDP_ERROR_ABORTED, "stopped"});
}

// The program finishes a work early on one rank and late on another; the sequence of operations is
// the same.
TEST_P(ExecutorTest, GatesKeepThePlaceOfAChainThatWaitsForTheProgram) {
    for (bool early : {true, false})
        for (bool any_thread : {true, false}) {
            ran_.clear();
            released_ = false;
            auto mine = Work::user_completed(5000);
            auto hold = block();
            auto before = submit_function(*executor_, note("x"));
            OpTag tag;
            tag.order.queue = executor_;  // as in a hook
            auto chain =
                mine->then([&](const OpTag&) { return submit_function(*executor_, note("a1")); },
                           any_thread, tag)
                    ->then(
                        [&](const OpTag&) {
                            auto second = Work::user_completed(5000);
                            std::thread([second] { second->complete({}); }).detach();
                            return second;
                        },
                        any_thread, tag)
                    ->then([&](const OpTag&) { return submit_function(*executor_, note("a2")); },
                           any_thread, tag);
            auto later = submit_function(*executor_, note("b"));
            if (early) mine->complete({});
            release();
            if (!early) {
                std::this_thread::sleep_for(20ms);
                mine->complete({});
            }
            ASSERT_TRUE(later->wait(Deadline::after_ms(5000)));
            ASSERT_TRUE(chain->wait(Deadline::after_ms(5000)));
            EXPECT_THAT(ran_, ElementsAre("x", "a1", "a2", "b")) << early << any_thread;
        }
}

TEST_P(ExecutorTest, PoisonFailsEverythingQueued) {
    auto hold = block();
    std::this_thread::sleep_for(10ms);
    auto queued = submit_function(*executor_, note("a"));
    auto chained = queued->then([](const OpTag&) -> WorkPtr { return nullptr; }, false, {});
    executor_->poison({DDP_ERROR_RANK_FAILED, "rank 1 died", 1});
    EXPECT_TRUE(queued->done());
    EXPECT_EQ(chained->result().rank, 1);
    EXPECT_EQ(submit_function(*executor_, note("b"))->result().code, DDP_ERROR_RANK_FAILED);
    release();
    EXPECT_TRUE(ran_.empty());
}

TEST_P(ExecutorTest, ManyWaitersAndSubmitters) {
    std::vector<std::thread> threads;
    std::atomic<int> done{0};
    for (int t = 0; t < 6; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 200; ++i) {
                auto work = submit_function(*executor_, [] { return ErrorInfo{}; });
                auto out =
                    work->then([](const OpTag&) -> WorkPtr { return nullptr; }, i % 2 == 0, {});
                if (out->wait(Deadline::after_ms(10'000))) ++done;
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(done, 1200);
}

// An operation that says whether it is ready, and notes which thread runs it.
class Recorded final : public Operation {
public:
    Recorded(bool ready, std::thread::id& ran_on) : ready_(ready), ran_on_(ran_on) {}
    bool ready() override { return ready_; }
    ErrorInfo run() override {
        ran_on_ = std::this_thread::get_id();
        return {};
    }

private:
    const bool ready_;
    std::thread::id& ran_on_;
};

TEST_P(ExecutorTest, OnAnIdleQueueTheSubmitterRunsWhatIsReady) {
    for (const bool ready : {true, false}) {
        std::thread::id ran_on;
        auto work = executor_->submit(std::make_unique<Recorded>(ready, ran_on));
        if (GetParam() == Runner::kWaitingThread) {
            EXPECT_FALSE(work->done()) << "the submitter does not wait";
        }
        // With a deadline of its own a waiter does not lend itself, unless nobody else would run
        // the operation.
        ASSERT_TRUE(work->wait(Deadline::after_ms(5000)));
        EXPECT_EQ(ran_on == std::this_thread::get_id(),
                  (ready && GetParam() == Runner::kAnyone) || GetParam() == Runner::kWaitingThread);
    }
}

TEST_P(ExecutorTest, OnAnIdleQueueWhoWaitsRunsItsOwnOperation) {
    std::thread::id ran_on;
    Recorded operation(false, ran_on);
    const auto result = executor_->run_now(operation);
    EXPECT_EQ(result.has_value(), GetParam() != Runner::kProgressThread);
    EXPECT_EQ(ran_on == std::this_thread::get_id(), result.has_value());
    EXPECT_TRUE(executor_->idle());
}

TEST_P(ExecutorTest, NothingRunsNowThatOthersAreBefore) {
    auto hold = block();
    std::thread::id ran_on;
    Recorded operation(true, ran_on);
    EXPECT_FALSE(executor_->run_now(operation));
    release();
    ASSERT_TRUE(hold->wait(Deadline::after_ms(5000)));
    executor_->stop({DDP_ERROR_ABORTED, "stopped"});
    EXPECT_FALSE(executor_->run_now(operation));
    EXPECT_EQ(ran_on, std::thread::id());
}

TEST_P(ExecutorTest, WhatIsReadyDoesNotOvertake) {
    auto hold = block();
    auto first = submit_function(*executor_, note("first"));
    std::thread::id ran_on;
    auto second = executor_->submit(std::make_unique<Recorded>(true, ran_on));
    EXPECT_FALSE(second->done());
    release();
    ASSERT_TRUE(second->wait(Deadline::after_ms(5000)));
    EXPECT_TRUE(first->done());
}

// A hook may go on with an operation of another group.
TEST(Interrupted, EndsWhatAContinuationHasBegunInAnotherGroup) {
    for (const bool with_siblings : {false, true}) {
        std::shared_ptr<Executor> groups[2];
        std::atomic<bool> broken[2] = {false, false}, begun{false};
        for (std::size_t g = 0; g < 2; ++g)
            groups[g] = Executor::start(Runner::kAnyone, false, [&, g](const WaitTarget&) {
                const ErrorInfo verdict{DDP_ERROR_INTERRUPTED, g == 0 ? "the first" : "the other",
                                        0};
                broken[g] = true;
                groups[g]->poison(verdict);
                return verdict;
            });
        if (with_siblings)
            groups[0]->join(
                std::make_shared<SiblingExecutors>(SiblingExecutors::Members{groups[0]}));
        interrupt::install(
            [](void* at) -> std::int32_t { return *static_cast<std::atomic<bool>*>(at); }, &begun,
            nullptr, true);
        auto out = submit_function(*groups[0], [] { return ErrorInfo{}; })
                       ->then(
                           [&](const OpTag&) {
                               return submit_function(*groups[1], [&] {
                                   begun = true;
                                   for (int i = 0; i < 5000 && !broken[1]; ++i)
                                       std::this_thread::sleep_for(1ms);
                                   return ErrorInfo{DDP_ERROR_ABORTED, "aborted"};
                               });
                           },
                           true, {});
        try {
            out->wait(std::nullopt);
            ADD_FAILURE() << "was not interrupted";
        } catch (const Error& error) {
            EXPECT_STREQ(error.what(), "the first");
        }
        EXPECT_TRUE(broken[1]);
        EXPECT_TRUE(out->done());
        interrupt::install(nullptr, nullptr, nullptr, false);
        for (const auto& group : groups) group->stop({DDP_ERROR_ABORTED, "stopped"});
    }
}

}  // namespace
