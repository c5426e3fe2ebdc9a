// ddp_set_interrupt_check: who is asked, what a yes does, and what the check may not do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.h"
#include "support/error_of.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace interrupt_test {

std::mutex asked_mutex;
std::set<std::thread::id> asked_threads;
thread_local bool tired = false;

std::int32_t ask(void*) {
    const std::lock_guard lock(asked_mutex);
    asked_threads.insert(std::this_thread::get_id());
    return tired;
}

std::size_t threads_asked() {
    const std::lock_guard lock(asked_mutex);
    return asked_threads.size();
}

class Interrupt : public testing::Test {
protected:
    void SetUp() override {
        asked_threads.clear();
        install(&ask);
    }
    void TearDown() override { install(nullptr); }

    static void install(ddp_interrupt_fn fn, std::uint32_t flags = 0) {
        ASSERT_EQ(ddp_set_interrupt_check(fn, nullptr, nullptr, flags, nullptr), DDP_OK);
    }
};

// Until another rank has broken the group; its error.
ddp_error* sleep_until_broken(ddp_group* group) {
    ddp_error* error = nullptr;
    while (ddp_group_status(group, &error) == DDP_OK)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return error;
}

void expect_interruption(ddp_error* error, const std::string& purpose) {
    const Facts facts = take_facts(error);
    EXPECT_EQ(facts, (Facts{DDP_ERROR_INTERRUPTED, 1}));
    EXPECT_THAT(facts.message, HasSubstr("while it waited for " + purpose));
}

class InterruptOver : public Interrupt, public testing::WithParamInterface<const char*> {};

TEST_P(InterruptOver, EndsABarrierOnEveryRank) {
    std::set<std::thread::id> ranks;
    std::mutex mutex;
    on_ranks({3, GetParam()}, [&](int rank, ddp_group* group) {
        {
            const std::lock_guard lock(mutex);
            ranks.insert(std::this_thread::get_id());
        }
        ddp_error* error = nullptr;
        if (rank == 0) {
            error = sleep_until_broken(group);
        } else {
            tired = rank == 1;
            EXPECT_EQ(ddp_barrier(group, nullptr, &error), DDP_ERROR_INTERRUPTED);
        }
        expect_interruption(error, "a barrier");
    });
    for (const auto id : asked_threads)
        EXPECT_EQ(ranks.count(id), 1u) << "a thread of libddp's own was asked";
}

TEST_P(InterruptOver, EndsTheWaitForAWorkWithItsOperation) {
    on_ranks({2, GetParam()}, [](int rank, ddp_group* group) {
        ddp_error* error = nullptr;
        if (rank == 0) return expect_interruption(sleep_until_broken(group), "an allreduce");
        std::vector<float> data(1000);
        ddp_work* work = nullptr;
        ASSERT_EQ(ddp_allreduce(group, nullptr, data.data(), data.size(), DDP_F32, DDP_SUM, &work,
                                nullptr),
                  DDP_OK);
        tired = true;
        EXPECT_EQ(ddp_work_wait(work, 0, &error), DDP_ERROR_INTERRUPTED);
        expect_interruption(error, "an allreduce");
        std::int32_t done = 0;
        EXPECT_EQ(ddp_work_test(work, &done, &error), DDP_ERROR_INTERRUPTED);
        take_message(error);
        ddp_work_free(work);
    });
}

INSTANTIATE_TEST_SUITE_P(Backends, InterruptOver,
                         testing::Values("threads", "threads-plain", "threads-single", "tcp",
                                         "shm"));

TEST_F(Interrupt, EndsAWaitInARoundRobinGroup) {
    RankOptions options(2, "tcp");
    options.round_robin = 2;
    on_ranks(options, [](int rank, ddp_group* group) {
        ddp_error* error = nullptr;
        if (rank == 0) return expect_interruption(sleep_until_broken(group), "a barrier");
        tired = true;
        EXPECT_EQ(ddp_barrier(group, nullptr, &error), DDP_ERROR_INTERRUPTED);
        expect_interruption(error, "a barrier");
    });
}

TEST_F(Interrupt, LeavesAGroupAloneThatItsWorkDoesNotBelongTo) {
    ddp_work* work = nullptr;
    ddp_error* error = nullptr;
    ASSERT_EQ(ddp_work_create(20'000, &work, nullptr), DDP_OK);
    std::thread([&] {
        tired = true;
        EXPECT_EQ(ddp_work_wait(work, 0, &error), DDP_ERROR_INTERRUPTED);
    }).join();
    EXPECT_EQ(take_facts(error), Facts{DDP_ERROR_INTERRUPTED});
    EXPECT_EQ(ddp_work_complete(work, DDP_OK, nullptr, nullptr), DDP_OK);
    EXPECT_EQ(ddp_work_wait(work, 0, nullptr), DDP_OK);
    ddp_work_free(work);
}

TEST_F(Interrupt, AsksOneThreadOnlyIfToldSo) {
    install(&ask, DDP_INTERRUPT_THIS_THREAD);
    on_ranks({2, "shm"}, [](int rank, ddp_group* group) {
        tired = true;
        if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));
        EXPECT_EQ(ddp_barrier(group, nullptr, nullptr), DDP_OK);
    });
    EXPECT_EQ(threads_asked(), 0u);
}

thread_local ddp_group* group_of_check = nullptr;
thread_local ddp_status status_in_check = DDP_OK;
std::int32_t wait_inside(void*) {
    if (!group_of_check) return 0;
    status_in_check = ddp_barrier(group_of_check, nullptr, nullptr);
    return 1;
}

TEST_F(Interrupt, RefusesToWaitInsideTheCheck) {
    install(&wait_inside);
    on_ranks({2, "shm"}, [](int rank, ddp_group* group) {
        if (rank == 0) return expect_interruption(sleep_until_broken(group), "a barrier");
        group_of_check = group;
        EXPECT_EQ(ddp_barrier(group, nullptr, nullptr), DDP_ERROR_INTERRUPTED);
        EXPECT_EQ(status_in_check, DDP_ERROR_INVALID_STATE);
    });
}

ddp_store* store_of_check = nullptr;
ddp_status waits_in_check[4];
std::int32_t use_the_store_inside(void*) {
    void* value = nullptr;
    std::size_t size = 0;
    waits_in_check[0] =
        ddp_store_get(store_of_check, "nobody sets this", 0, &value, &size, nullptr);
    const char* const keys[] = {"nobody comes"};
    waits_in_check[1] = ddp_store_wait(store_of_check, keys, 1, 0, nullptr);
    waits_in_check[2] =
        ddp_store_get(store_of_check, "nobody sets this", -1, &value, &size, nullptr);
    ddp_group_options options;
    ddp_group* group = nullptr;
    ddp_group_options_init(&options);
    options.store = store_of_check;
    options.rank = 0;
    options.world_size = 2;
    options.timeout_ms = 5000;
    waits_in_check[3] = ddp_group_create(&options, &group, nullptr);
    return 1;
}

TEST_F(Interrupt, RefusesToWaitForTheStoreInsideTheCheck) {
    ddp_store_options options;
    ddp_store_options_init(&options);
    options.uri = "tcp://127.0.0.1:0";
    options.is_server = 1;
    options.timeout_ms = 20'000;
    ASSERT_EQ(ddp_store_create(&options, &store_of_check, nullptr), DDP_OK);
    install(&use_the_store_inside);
    void* value = nullptr;
    std::size_t size = 0;
    EXPECT_EQ(ddp_store_get(store_of_check, "nor this", 0, &value, &size, nullptr),
              DDP_ERROR_INTERRUPTED);
    EXPECT_EQ(waits_in_check[0], DDP_ERROR_INVALID_STATE);
    EXPECT_EQ(waits_in_check[1], DDP_ERROR_INVALID_STATE);
    EXPECT_EQ(waits_in_check[2], DDP_ERROR_TIMEOUT) << "this one does not wait";
    EXPECT_EQ(waits_in_check[3], DDP_ERROR_INVALID_STATE);
    install(nullptr);
    ddp_store_free(store_of_check);
}

TEST_F(Interrupt, DestroysTheDataOnce) {
    int destroyed = 0;
    const auto destroy = [](void* count) { ++*static_cast<int*>(count); };
    ASSERT_EQ(ddp_set_interrupt_check(&ask, &destroyed, destroy, 0, nullptr), DDP_OK);
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_set_interrupt_check(&ask, &destroyed, destroy, 2, &error), DDP_ERROR_UNSUPPORTED);
    EXPECT_EQ(take_facts(error), Facts{DDP_ERROR_UNSUPPORTED});
    EXPECT_EQ(destroyed, 0);
    install(nullptr);
    EXPECT_EQ(destroyed, 1);
}

}  // namespace interrupt_test
