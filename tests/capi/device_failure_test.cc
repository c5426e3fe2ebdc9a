// Failures on devices: streams that do not go on, ranks that do not come, memory that is elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <thread>

#include "capi/bad_input.h"
#include "ddp/ddp.hpp"
#include "support/device_model.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/slack.h"
#include "support/stream_backend.h"

using testing::HasSubstr;

namespace device_failure_test {

using Clock = std::chrono::steady_clock;

// A stream that stands still until this is opened.
class Gate {
public:
    Gate(int device, void* stream) {
        fake::launch(device, stream, [opened = opened_.get_future().share()] { opened.wait(); });
    }
    void open() { opened_.set_value(); }

private:
    std::promise<void> opened_;
};

class DeviceFailureTest : public DeviceTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, DeviceFailureTest,
                         testing::Values("streams", "threads", "tcp", "shm"),
                         [](const auto& test) { return std::string(test.param); });

void wait_until_broken(ddp_group* group) {
    const auto end = Clock::now() + std::chrono::seconds(10);
    while (ddp_group_status(group, nullptr) == DDP_OK && Clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

using DeviceCheckTest = DeviceTest;

TEST_F(DeviceCheckTest, WhatReadsNumbersRefusesDevices) {
    auto refuse = ddp::Context::defaults(), skip = refuse, verify = refuse;
    refuse.flags = DDP_CONTEXT_REFUSE_NONFINITE;
    skip.flags = DDP_CONTEXT_SKIP_NONFINITE;
    verify.verify_interval = 1;
    const std::pair<ddp_context_options, const char*> cases[] = {
        {refuse, "DDP_CONTEXT_REFUSE_NONFINITE"},
        {skip, "DDP_CONTEXT_SKIP_NONFINITE"},
        {verify, "verify_interval"}};
    for (const auto& [options, name] : cases)
        on_ranks({1, "threads"}, [&, options = options, name = name](int, ddp_group* group) {
            DeviceModel model(group, {8}, true, {0}, options);
            expect_refused(
                {{name, DDP_ERROR_UNSUPPORTED, {name}, calling(ddp_commit, model.context.get())}});
        });
}

// The caller of an interrupted wait leaves the function that owns the memory.
using DeviceInterruptTest = DeviceTest;

TEST_F(DeviceInterruptTest, AnInterruptedWaitLetsTheDeviceGoOnFirst) {
    on_ranks({1, "streams"}, [&](int, ddp_group* group) {
        DeviceModel model(group, {64}, true, {0});
        std::promise<void> asked;
        std::atomic<bool> said{false}, opened{false};
        struct Check {
            std::promise<void>& asked;
            std::atomic<bool>& said;
        } data{asked, said};
        const ddp_interrupt_fn check = [](void* at) -> std::int32_t {
            auto& c = *static_cast<Check*>(at);
            if (!c.said.exchange(true)) c.asked.set_value();
            return 1;
        };
        model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
            Gate gate(0, ddp_bucket_stream(bucket));
            ddp_work* work = nullptr;
            EXPECT_EQ(ddp_allreduce(g, nullptr, ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                                    DDP_F32, DDP_AVG, &work, nullptr),
                      DDP_OK);
            std::thread opener([&] {
                asked.get_future().wait_for(std::chrono::seconds(10));
                std::this_thread::sleep_for(std::chrono::milliseconds(100));
                opened = true;
                gate.open();
            });
            EXPECT_EQ(
                ddp_set_interrupt_check(check, &data, nullptr, DDP_INTERRUPT_THIS_THREAD, nullptr),
                DDP_OK);
            EXPECT_EQ(ddp_work_wait(work, 0, nullptr), DDP_ERROR_INTERRUPTED);
            EXPECT_TRUE(opened) << "the device still uses the memory";
            EXPECT_EQ(ddp_set_interrupt_check(nullptr, nullptr, nullptr, 0, nullptr), DDP_OK);
            opener.join();
            ddp_work_free(work);
            return ddp::Work(nullptr);
        });
        model.context.commit();
        const Facts facts = facts_of([&] {
            model.give(0, 1);
            model.context.finalize();
        });
        EXPECT_EQ(facts, (Facts{DDP_ERROR_INTERRUPTED, 0, -1, 0, 0}));
    });
}

TEST_P(DeviceFailureTest, AnAbortReachesARankWhoseStreamIsBusy) {
    on_ranks({2, GetParam()}, [&](int rank, ddp_group* group) {
        DeviceModel model(group, {64, 700'000}, rank == 0, {rank});
        model.context.commit();
        if (rank == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            model.context.abort("the test wants it");
            return;
        }
        Gate gate(0, model.stream(0));
        for (int p : {1, 0}) model.give(p, 1);
        const auto begin = Clock::now();
        const Facts facts = facts_of([&] { model.context.finalize(); });
        EXPECT_EQ(facts.status, DDP_ERROR_ABORTED) << facts;
        EXPECT_EQ(facts.rank, 1) << facts;
        EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(libddp::with_slack(5000)));
        gate.open();
    });
}

TEST_P(DeviceFailureTest, AStreamThatStandsStillIsATimeout) {
    RankOptions options(2, GetParam());
    options.timeout_ms = 3000;  // joining is bounded by it, too
    on_ranks(options, [&](int rank, ddp_group* group) {
        DeviceModel model(group, {64}, true, {rank});
        model.context.commit();
        std::unique_ptr<Gate> gate;
        if (rank == 0) gate = std::make_unique<Gate>(0, model.stream(0));
        model.give(0, 1);
        const auto begin = Clock::now();
        EXPECT_EQ(facts_of([&] { model.context.finalize(); }).status, DDP_ERROR_TIMEOUT);
        EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(libddp::with_slack(10'000)));
        if (gate) gate->open();
    });
}

TEST_F(DeviceFailureTest, AWaitForAnOperationThatDoesNotEndNamesItsBucket) {
    RankOptions options(1, "streams");
    options.timeout_ms = 300;
    on_ranks(options, [&](int, ddp_group* group) {
        DeviceModel model(group, {64}, true, {0});
        Facts facts;
        model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
            Gate gate(0, ddp_bucket_stream(bucket));
            ddp_work* work = nullptr;
            EXPECT_EQ(ddp_allreduce(g, nullptr, ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                                    DDP_F32, DDP_AVG, &work, nullptr),
                      DDP_OK);
            ddp_error* error = nullptr;
            EXPECT_EQ(ddp_work_wait(work, 0, &error), DDP_ERROR_TIMEOUT);
            facts = take_facts(error);
            gate.open();
            ddp_work_free(work);
            return ddp::Work(nullptr);
        });
        model.context.commit();
        model.give(0, 1);
        model.context.finalize();
        EXPECT_EQ(facts, (Facts{DDP_ERROR_TIMEOUT, -1, -1, 0, 0}));
    });
}

// Rank 1 never comes to the bucket; nobody waits for the operation on rank 0.
TEST_F(DeviceFailureTest, WhatIsOnlyEnqueuedIsWatched) {
    RankOptions options(2, "streams");
    options.timeout_ms = 3000;
    options.flags = DDP_GROUP_NO_MATCH_CHECK;
    on_ranks(options, [&](int rank, ddp_group* group) {
        DeviceModel model(group, {64}, true, {rank});
        model.context.commit();
        if (rank == 0) {
            model.give(0, 1);
            model.context.finalize_on(model.stream(0));
        }
        wait_until_broken(group);
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_group_status(group, &error), DDP_ERROR_TIMEOUT);
        EXPECT_EQ(take_facts(error), (Facts{DDP_ERROR_TIMEOUT, 1, -1, 0, 0}));
    });
}

// Holds something while it lives.
class Held {
public:
    explicit Held(void (*hold)(bool)) : hold_(hold) { hold_(true); }
    ~Held() { hold_(false); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

private:
    void (*const hold_)(bool);
};

// A function of the device's does not return: one that asks whether an operation is over, or one
// that enqueues it. CUDA's may wait for a thread that allocates memory, which waits for a kernel,
// which waits for another rank.
TEST_F(DeviceFailureTest, ADeviceThatDoesNotAnswerIsATimeout) {
    RankOptions options(2, "streams");
    options.timeout_ms = 3000;
    options.flags = DDP_GROUP_NO_MATCH_CHECK;
    for (const auto& hold : {fake::hold_queries, hold_stream_backend}) {
        std::latch released(2);
        on_ranks(options, [&](int rank, ddp_group* group) {
            DeviceModel model(group, {64}, true, {rank});
            model.context.commit();
            fake::wait(rank, model.stream(0));
            EXPECT_EQ(ddp_barrier(group, nullptr, nullptr), DDP_OK);
            std::future<void> step;
            {
                const Held held(rank == 0 ? hold : [](bool) {});
                if (rank == 0)
                    step = std::async(std::launch::async, [&] {
                        model.give(0, 1);
                        try {
                            model.context.finalize_on(model.stream(0));
                            // a step that is not enqueued ends with the error
                        } catch (const ddp::Error&) {
                        }
                    });
                wait_until_broken(group);
                ddp_error* error = nullptr;
                EXPECT_EQ(ddp_group_status(group, &error), DDP_ERROR_TIMEOUT);
                const Facts facts = take_facts(error);
                EXPECT_THAT(facts.message, HasSubstr("the device did not answer within"));
                // The question that is not answered may still be about an operation before.
                if (hold == hold_stream_backend) {
                    EXPECT_EQ(facts.bucket, 0) << facts;
                    EXPECT_EQ(facts.step, 0) << facts;
                }
            }
            released.arrive_and_wait();
        });
    }
}

// To drop queued work is to free memory and events, and those functions may not return while a
// kernel waits for another rank.
TEST_F(DeviceFailureTest, AnAbortEndsKernelsBeforeItDropsWhatIsQueued) {
    RankOptions options(2, "streams");
    options.flags = DDP_GROUP_NO_MATCH_CHECK;
    std::latch committed(2), ended(2);
    std::atomic<std::int32_t> dropped{-1};  // by the time that the backend of rank 0 is aborted
    on_ranks(options, [&](int rank, ddp_group* group) {
        DeviceModel model(group, {64}, true, {rank});
        model.context.commit();
        committed.arrive_and_wait();
        if (rank == 0) {
            ddp_work* queued = nullptr;
            on_stream_backend_abort([&](int aborted) {
                // The other rank learns of the abort, too, and its backend would let this rank's go
                // on.
                for (int wait = 0; aborted == 1 && dropped == -1 && wait < 10'000; ++wait)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                if (aborted == 1 || dropped != -1) return;
                std::int32_t done = 0;
                ddp_work_test(queued, &done, nullptr);
                dropped = done;
            });
            {
                const Held held(hold_stream_backend);
                const long before = stream_backend_runs();
                auto step = std::async(std::launch::async, [&] {
                    model.give(0, 1);
                    EXPECT_EQ(facts_of([&] { model.context.finalize(); }).status,
                              DDP_ERROR_ABORTED);
                });
                for (int wait = 0; stream_backend_runs() == before && wait < 10'000; ++wait)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                EXPECT_GT(stream_backend_runs(), before) << "the step has not reached the backend";
                EXPECT_EQ(ddp_barrier(group, &queued, nullptr), DDP_OK);
                EXPECT_EQ(ddp_group_abort(group, "the test wants it", nullptr), DDP_OK);
            }
            on_stream_backend_abort(nullptr);
            EXPECT_EQ(dropped, 0) << "queued work ended before the kernels did";
            EXPECT_EQ(ddp_work_wait(queued, 0, nullptr), DDP_ERROR_ABORTED);
            ddp_work_free(queued);
        }
        ended.arrive_and_wait();
    });
}

TEST_F(DeviceFailureTest, WhatFailsLaterBreaksTheGroup) {
    RankOptions options(2, "streams");
    options.flags = DDP_GROUP_NO_MATCH_CHECK;
    // A lost connection alone does not say which end is at fault.
    for (const auto& [status, at_fault] :
         {std::pair{DDP_ERROR_UNAVAILABLE, -1}, std::pair{DDP_ERROR_IO, 0}}) {
        std::latch committed(2);  // the plug is that of both ranks
        on_ranks(options, [&, status = status, at_fault = at_fault](int rank, ddp_group* group) {
            DeviceModel model(group, {64}, true, {rank});
            model.context.commit();
            committed.arrive_and_wait();
            if (rank == 0) {
                model.give(0, 1);
                fail_stream_backend(status);
                const Facts facts = facts_of([&] { model.context.finalize(); });
                EXPECT_EQ(facts.status, status);
                EXPECT_EQ(facts.rank, at_fault) << facts;
                EXPECT_EQ(facts.step, 0) << facts;
                EXPECT_THAT(facts.message, HasSubstr("the test pulled the plug"));
                fail_stream_backend(DDP_OK);
                return;
            }
            wait_until_broken(group);
            EXPECT_NE(ddp_group_status(group, nullptr), DDP_OK);
        });
    }
}

// Another group takes over, with new buckets. The memory of a hook that travels meanwhile is freed,
// or used again, after that.
TEST_P(DeviceFailureTest, AContextGoesOnInAnotherGroup) {
    const auto steps = [](int rank, ddp_group* group, const char* hook, const char* options) {
        ddp_group* spare = nullptr;
        ASSERT_EQ(ddp_group_split(group, 0, rank, &spare, nullptr), DDP_OK);
        {
            DeviceModel model(group, {64, 3000}, true, {rank});
            model.context.use_hook(hook, options);
            model.context.commit();
            ASSERT_EQ(ddp_barrier(spare, nullptr, nullptr), DDP_OK);
            Gate gate(rank, model.stream(0));
            try {
                model.give(1, 1);
            } catch (const ddp::Error&) {  // rank 1 was faster
            }
            if (rank == 1) model.context.abort("on purpose");
            while (ddp_group_status(group, nullptr) == DDP_OK) std::this_thread::yield();
            gate.open();
            BorrowedGroup next(spare);
            model.context.set_group(next);
            for (int number = 0; number < 3; ++number) {
                for (int p : {1, 0}) model.give(p, static_cast<float>(2 * rank + number));
                model.context.finalize_on(model.stream(0));
                for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, 1 + number));
            }
        }
        ddp_group_free(spare);
    };
    for (const auto& [hook, options] :
         {std::pair{"allreduce", ""}, {"topk", "ratio=1,min_elements=1"}})
        on_ranks({2, GetParam()}, [&, hook = hook, options = options](int rank, ddp_group* group) {
            steps(rank, group, hook, options);
        });
}

TEST_F(DeviceFailureTest, MemoryMustBeWhereTheDeviceSays) {
    on_ranks({1, "threads"}, [&](int, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::vector<float> on_cpu(4);
        auto* on_device = static_cast<float*>(fake::allocate(0, 16));
        const auto add = [&](float* data, ddp_device device, std::uint32_t flags = 0) {
            return throwing([&context, data, device, flags] {
                context.add_param<float>("w", {4}, data, nullptr, device, flags);
            });
        };
        expect_refused({
            {"of the CPU", kInvalid, {"cuda:0"}, add(on_cpu.data(), {DDP_DEVICE_CUDA, 0})},
            {"of a device",
             kInvalid,
             {"data is memory of cuda:0"},
             add(on_device, {DDP_DEVICE_CPU, 0})},
            {"of another device", kInvalid, {"cuda:1"}, add(on_device, {DDP_DEVICE_CUDA, 1})},
            {"of none",
             DDP_ERROR_UNSUPPORTED,
             {"there are 2"},
             add(on_device, {DDP_DEVICE_CUDA, 5})},
            {"sparse",
             DDP_ERROR_UNSUPPORTED,
             {"DDP_PARAM_SPARSE"},
             add(on_device, {DDP_DEVICE_CUDA, 0}, DDP_PARAM_SPARSE)},
        });
        fake::release(on_device);
    });
}

TEST_F(DeviceFailureTest, AStreamThatIsCapturedIsRefused) {
    on_ranks({1, "threads"}, [&](int, ddp_group* group) {
        DeviceModel model(group, {4}, true, {0});
        model.context.commit();
        fake::begin_capture(model.stream(0));
        expect_refused({
            {"ready",
             kState,
             {"graph"},
             calling(ddp_grad_ready_on, model.context.get(), 0, model.stream(0))},
            {"finalize",
             kState,
             {"ddp_finalize_on"},
             calling(ddp_finalize_on, model.context.get(), model.stream(0))},
            {"begin", kState, {"ddp_step_begin"}, calling(ddp_step_begin, model.context.get())},
        });
        fake::end_capture(model.stream(0));
        model.give(0, 2);
        model.context.finalize_async();
        fake::begin_capture(model.stream(0));
        expect_refused({{"wait",
                         kState,
                         {"ddp_wait_param_on"},
                         calling(ddp_wait_param_on, model.context.get(), 0, model.stream(0))}});
        fake::end_capture(model.stream(0));
        model.context.wait_on(0, model.stream(0));
        model.context.finalize_on(model.stream(0));
        EXPECT_TRUE(model.holds(0, 2));
    });
}

TEST_F(DeviceFailureTest, AStreamWaitsOnlyBetweenTheAnnouncementAndTheEnd) {
    on_ranks({1, "threads"}, [&](int, ddp_group* group) {
        DeviceModel model(group, {4}, true, {0});
        expect_refused({{"early", kState, {"ddp_commit"}, throwing([&] {
                             model.context.wait_on(0, nullptr);
                         })}});
        model.context.commit();
        model.give(0, 2);
        expect_refused({
            {"in the backward pass",
             kState,
             {"between ddp_finalize_async and ddp_finalize"},
             throwing([&] { model.context.wait_on(0, model.stream(0)); })},
            {"unknown", kInvalid, {"ddp_wait_param_on"}, throwing([&] {
                 model.context.wait_on(7, model.stream(0));
             })},
        });
        model.finalize();
    });
}

TEST_F(DeviceFailureTest, RanksWithOtherKindsOfMemoryDisagree) {
    on_ranks({2, "threads"}, [&](int rank, ddp_group* group) {
        DeviceModel model(group, {4}, true, {rank - 1});
        EXPECT_EQ(facts_of([&] { model.context.commit(); }), (Facts{DDP_ERROR_MISMATCH, 1, 0}));
    });
}

}  // namespace device_failure_test
