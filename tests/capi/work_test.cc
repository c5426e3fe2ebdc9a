// Works and continuations through the C ABI: ownership of user data, errors, works that the program
// completes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace work_test {

struct Counter {
    int runs = 0;
    int destroyed = 0;
    ddp_status status = DDP_OK;
    ddp_work* next = nullptr;

    static ddp_status run(void* self, ddp_work** next, ddp_error** error) {
        auto& c = *static_cast<Counter*>(self);
        ++c.runs;
        if (c.status != DDP_OK) *error = ddp_error_create(c.status, "my own words");
        if (c.next) *next = c.next;
        return c.status;
    }
    static void destroy(void* self) { ++static_cast<Counter*>(self)->destroyed; }
};

ddp_work* completed(ddp_status status = DDP_OK) {
    ddp_work* work = nullptr;
    EXPECT_EQ(ddp_work_create(0, &work, nullptr), DDP_OK);
    EXPECT_EQ(ddp_work_complete(work, status, "broken on purpose", nullptr), DDP_OK);
    return work;
}

TEST(Work, ContinuationRunsOnceAndItsDataIsDestroyedOnce) {
    Counter counter;
    ddp_work *work = completed(), *out = nullptr;
    ASSERT_EQ(ddp_work_then(work, &Counter::run, &counter, &Counter::destroy, 0, &out, nullptr),
              DDP_OK);
    EXPECT_EQ(ddp_work_wait(out, 0, nullptr), DDP_OK);
    EXPECT_EQ(counter.runs, 1);
    EXPECT_EQ(counter.destroyed, 1);
    ddp_work_free(work);
    ddp_work_free(out);
    EXPECT_EQ(counter.destroyed, 1);
}

TEST(Work, ContinuationOfAFailedWorkIsDestroyedWithoutRunning) {
    Counter counter;
    ddp_work *work = completed(DDP_ERROR_IO), *out = nullptr;
    ASSERT_EQ(ddp_work_then(work, &Counter::run, &counter, &Counter::destroy, 0, &out, nullptr),
              DDP_OK);
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_work_wait(out, 0, &error), DDP_ERROR_IO);
    EXPECT_EQ(take_message(error), "broken on purpose");
    EXPECT_EQ(counter.runs, 0);
    EXPECT_EQ(counter.destroyed, 1);
    ddp_work_free(work);
    ddp_work_free(out);
}

TEST(Work, DataStaysTheCallersIfThenFails) {
    Counter counter;
    ddp_work *work = completed(), *out = nullptr;
    EXPECT_EQ(ddp_work_then(work, nullptr, &counter, &Counter::destroy, 0, &out, nullptr),
              DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(
        ddp_work_then(work, &Counter::run, &counter, &Counter::destroy, 1u << 9, &out, nullptr),
        DDP_ERROR_UNSUPPORTED);
    EXPECT_EQ(counter.destroyed, 0);
    EXPECT_EQ(out, nullptr);
    ddp_work_free(work);
}

TEST(Work, ErrorsOfContinuationsKeepTheirWords) {
    Counter counter;
    counter.status = DDP_ERROR_LIMIT;
    ddp_work *work = completed(), *out = nullptr;
    ASSERT_EQ(ddp_work_then(work, &Counter::run, &counter, nullptr, 0, &out, nullptr), DDP_OK);
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_work_wait(out, 0, &error), DDP_ERROR_LIMIT);
    EXPECT_THAT(take_message(error), HasSubstr("my own words"));
    ddp_work_free(work);
    ddp_work_free(out);
}

TEST(Work, ResultWaitsForTheNextWork) {
    Counter counter;
    ASSERT_EQ(ddp_work_create(5000, &counter.next, nullptr), DDP_OK);
    ddp_work* handle = counter.next;
    ddp_work *work = completed(), *out = nullptr;
    // The continuation gives its handle away; another one for us comes through a continuation on
    // it.
    Counter watcher;
    ddp_work* watched = nullptr;
    ASSERT_EQ(ddp_work_then(handle, &Counter::run, &watcher, nullptr, 0, &watched, nullptr),
              DDP_OK);
    ASSERT_EQ(ddp_work_then(work, &Counter::run, &counter, nullptr, 0, &out, nullptr), DDP_OK);
    int32_t done = 1;
    EXPECT_EQ(ddp_work_test(out, &done, nullptr), DDP_OK);
    EXPECT_EQ(done, 0);
    EXPECT_EQ(ddp_work_wait(out, 20, nullptr), DDP_ERROR_TIMEOUT);
    ddp_work_free(work);
    ddp_work_free(out);
    ddp_work_free(watched);
}

// The next work may use the data: a collective of an array in it, for example.
TEST(Work, DataIsThereUntilTheNextWorkIsDone) {
    for (const ddp_status status : {DDP_OK, DDP_ERROR_IO}) {
        Counter counter, nothing;
        ddp_work *mine = nullptr, *work = completed(), *out = nullptr;
        ASSERT_EQ(ddp_work_create(60'000, &mine, nullptr), DDP_OK);
        ASSERT_EQ(ddp_work_then(mine, &Counter::run, &nothing, nullptr, 0, &counter.next, nullptr),
                  DDP_OK);
        ASSERT_EQ(ddp_work_then(work, &Counter::run, &counter, &Counter::destroy, 0, &out, nullptr),
                  DDP_OK);
        EXPECT_EQ(counter.runs, 1);
        EXPECT_EQ(counter.destroyed, 0);
        EXPECT_EQ(ddp_work_complete(mine, status, "broken on purpose", nullptr), DDP_OK);
        EXPECT_EQ(counter.destroyed, 1);
        EXPECT_EQ(ddp_work_wait(out, 0, nullptr), status);
        ddp_work_free(mine);
        ddp_work_free(work);
        ddp_work_free(out);
    }
}

TEST(Work, WorksOfTheProgramExpire) {
    ddp_work* work = nullptr;
    ASSERT_EQ(ddp_work_create(30, &work, nullptr), DDP_OK);
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_work_wait(work, 0, &error), DDP_ERROR_TIMEOUT);
    EXPECT_EQ(take_facts(error), Facts{DDP_ERROR_TIMEOUT});
    EXPECT_EQ(ddp_work_complete(work, DDP_OK, nullptr, &error), DDP_ERROR_INVALID_STATE);
    EXPECT_EQ(take_facts(error), Facts{DDP_ERROR_INVALID_STATE});
    ddp_work_free(work);
}

TEST(Work, AnotherThreadCompletes) {
    ddp_work* work = nullptr;
    ASSERT_EQ(ddp_work_create(10'000, &work, nullptr), DDP_OK);
    std::thread completer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ddp_work_complete(work, DDP_OK, nullptr, nullptr);
    });
    EXPECT_EQ(ddp_work_wait(work, 0, nullptr), DDP_OK);
    completer.join();
    ddp_work_free(work);
}

TEST(Work, AWaitMayBeAsLongAsANumberCanSay) {
    ddp_work* work = nullptr;
    ASSERT_EQ(ddp_work_create(INT64_MAX, &work, nullptr), DDP_OK);
    std::thread completer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ddp_work_complete(work, DDP_OK, nullptr, nullptr);
    });
    EXPECT_EQ(ddp_work_wait(work, INT64_MAX, nullptr), DDP_OK);
    completer.join();
    ddp_work_free(work);
    for (const char* backend : {"threads", "tcp", "gloo", "shm"}) {
        RankOptions options(2, backend);
        options.timeout_ms = INT64_MAX;
        on_ranks(options, [](int, ddp_group* group) {
            EXPECT_EQ(ddp_group_status(group, nullptr), DDP_OK);
            ddp_work* barrier = nullptr;
            ASSERT_EQ(ddp_barrier(group, &barrier, nullptr), DDP_OK);
            EXPECT_EQ(ddp_work_wait(barrier, INT64_MAX, nullptr), DDP_OK);
            ddp_work_free(barrier);
        });
    }
}

TEST(Work, OperationsAreNotTheProgramsToComplete) {
    on_ranks({1}, [](int, ddp_group* group) {
        ddp_work* work = nullptr;
        ASSERT_EQ(ddp_barrier(group, &work, nullptr), DDP_OK);
        EXPECT_EQ(ddp_work_complete(work, DDP_OK, nullptr, nullptr), DDP_ERROR_INVALID_STATE);
        EXPECT_EQ(ddp_work_wait(work, 0, nullptr), DDP_OK);
        ddp_work_free(work);
    });
}

TEST(Work, ChainsOfCollectivesStayInStepWhateverTheTiming) {
    for (RankOptions options : {RankOptions(3, "threads"), RankOptions(3, "threads-single"),
                                RankOptions(3, "threads-caller"), RankOptions(3, "tcp")})
        for (options.round_robin = 1; options.round_robin <= 3; options.round_robin += 2) {
            // cannot take turns
            if (options.round_robin > 1 && options.backend == "threads-caller") continue;
            on_ranks(options, [](int rank, ddp_group* handle) {
                ddp::Group group(handle);
                for (int round = 0; round < 30; ++round) {
                    std::vector<std::vector<float>> data(
                        4, std::vector<float>(8, static_cast<float>(rank)));
                    std::vector<ddp::Work> works;
                    for (auto& d : data) {
                        // Two collectives in a chain, and ranks that run at different speeds.
                        works.push_back(group.allreduce(d.data(), d.size()).then([&group, &d] {
                            for (auto& x : d) x += 1;
                            return group.allreduce(d.data(), d.size(), DDP_MAX);
                        }));
                        if ((rank + round) % 3 == 0)
                            std::this_thread::sleep_for(std::chrono::microseconds(200));
                    }
                    for (auto& work : works) work.wait();
                    for (auto& d : data) EXPECT_THAT(d, testing::Each(4.0f));
                }
                group.barrier();
                group.release();
            });
        }
}

// The last owner of a group may be what its failure destroys, on a thread that belongs to the group
// itself, whether that thread learns of the failure or finds it.
TEST(Work, AGroupMayBeFreedByWhatItsFailureDestroys) {
    struct Owner {
        ddp_group* group;
        std::promise<void> freed;

        static ddp_status run(void*, ddp_work**, ddp_error**) { return DDP_OK; }
        static void destroy(void* self) {
            auto& owner = *static_cast<Owner*>(self);
            ddp_group_free(owner.group);
            owner.freed.set_value();
        }
    };
    for (const char* backend : {"threads", "threads-single", "threads-caller", "tcp"})
        for (ddp_status failure : {DDP_ERROR_ABORTED, DDP_ERROR_MISMATCH}) {
            SCOPED_TRACE(std::string(backend) + ", " + ddp_status_name(failure));
            std::barrier split_done(2);
            on_ranks({2, backend}, [&](int rank, ddp_group* group) {
                Owner owner;
                ASSERT_EQ(ddp_group_split(group, 0, 0, &owner.group, nullptr), DDP_OK);
                split_done.arrive_and_wait();
                float values[2] = {1, 1};
                ddp_work *work = nullptr, *queued = nullptr, *out = nullptr;
                if (rank == 1) {
                    if (failure == DDP_ERROR_ABORTED) {
                        EXPECT_EQ(ddp_group_abort(owner.group, "test", nullptr), DDP_OK);
                    } else {
                        EXPECT_EQ(ddp_allreduce(owner.group, nullptr, values, 2, DDP_F32, DDP_SUM,
                                                &work, nullptr),
                                  DDP_OK);
                        EXPECT_EQ(ddp_work_wait(work, 0, nullptr), failure);
                        ddp_work_free(work);
                    }
                    ddp_group_free(owner.group);
                    return;
                }
                auto freed = owner.freed.get_future();
                if (ddp_allreduce(owner.group, nullptr, values, 1, DDP_F32, DDP_SUM, &work,
                                  nullptr) != DDP_OK) {
                    ddp_group_free(owner.group);  // the other was faster
                    return;
                }
                // The second ends within the failure of the first.
                if (ddp_allreduce(owner.group, nullptr, values + 1, 1, DDP_F32, DDP_SUM, &queued,
                                  nullptr) != DDP_OK) {
                    ddp_group_free(owner.group);
                    ddp_work_free(work);
                    return;
                }
                ASSERT_EQ(
                    ddp_work_then(queued, &Owner::run, &owner, &Owner::destroy, 0, &out, nullptr),
                    DDP_OK);
                if (failure == DDP_ERROR_MISMATCH) {
                    EXPECT_EQ(ddp_work_wait(work, 0, nullptr), failure);
                }
                EXPECT_EQ(freed.wait_for(std::chrono::seconds(5)), std::future_status::ready);
                EXPECT_EQ(ddp_work_wait(out, 0, nullptr), failure);
                ddp_work_free(work);
                ddp_work_free(queued);
                ddp_work_free(out);
            });
        }
}

}  // namespace work_test
