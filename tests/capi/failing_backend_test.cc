// Failures of a backend of which the working backends show little.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <new>
#include <string>
#include <thread>

#include "ddp/ddp.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace failing_backend_test {

std::atomic<bool> out_of_memory{false};
std::atomic<ddp_status> code{DDP_ERROR_RANK_FAILED};
std::atomic<const char*> text{"the cable is cut"};

ddp_status run(void*, const ddp_collective*, ddp_backend_failure* failure) {
    if (out_of_memory) throw std::bad_alloc();  // as libddp's own code may on the way
    failure->rank = -1;
    std::snprintf(failure->message, sizeof failure->message, "%s", text.load());
    return code;
}

void register_failing_backend() {
    static const ddp_backend* const backend = [] {
        static ddp_backend made{};
        made.struct_size = sizeof made;
        made.abi_version = DDP_BACKEND_ABI_VERSION;
        made.name = "failing";
        made.create = [](const ddp_backend_host*, void** transport, ddp_backend_failure*) {
            *transport = &made;
            return ddp_status{DDP_OK};
        };
        made.destroy = [](void*) {};
        made.capabilities = [](void*) { return std::uint32_t{DDP_BACKEND_COMPARES}; };
        made.abort = [](void*) {};
        made.run = &run;
        EXPECT_EQ(ddp_backend_register(&made, nullptr), DDP_OK);
        return &made;
    }();
    (void)backend;
}

// Rank 0 begins an allreduce. For each rank: what it says of that.
void fail_on_rank_0(const std::function<void(ddp_error* error)>& examine) {
    register_failing_backend();
    on_ranks({2, "failing"}, [&](int rank, ddp_group* group) {
        ddp_error* error = nullptr;
        float value = 1;
        if (rank == 0) {
            EXPECT_NE(ddp_allreduce(group, nullptr, &value, 1, DDP_F32, DDP_SUM, nullptr, &error),
                      DDP_OK);
        } else {
            for (int i = 0; i < 10'000 && ddp_group_status(group, nullptr) == DDP_OK; ++i)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            EXPECT_NE(ddp_group_status(group, &error), DDP_OK);
        }
        examine(error);
        ddp_error_free(error);
    });
}

TEST(FailingBackend, ALossWithoutACulpritSaysWhoSawItAndWhere) {
    out_of_memory = false;
    fail_on_rank_0([](ddp_error* error) {
        EXPECT_EQ(ddp_error_code(error), DDP_ERROR_RANK_FAILED);
        EXPECT_EQ(ddp_error_rank(error), -1);
        EXPECT_THAT(ddp_error_message(error),
                    HasSubstr(" on rank 0: backend failing: the cable is cut"));
    });
}

// Memory of the transport outlives the group; the other ranks hear of the end at once.
TEST(OwnBackend, LeavesWhenTheGroupIsFreed) {
    static std::string calls;
    static char memory[64];
    static ddp_backend made{};
    made.abi_version = DDP_BACKEND_ABI_VERSION;
    made.create = [](const ddp_backend_host*, void** transport, ddp_backend_failure*) {
        *transport = &made;
        return ddp_status{DDP_OK};
    };
    made.destroy = [](void*) { calls += " destroy"; };
    made.capabilities = [](void*) { return std::uint32_t{DDP_BACKEND_COMPARES}; };
    made.abort = [](void*) { calls += " abort"; };
    made.run = [](void*, const ddp_collective*, ddp_backend_failure*) {
        return ddp_status{DDP_OK};
    };
    made.allocate = [](void*, std::size_t, ddp_device, void** out, ddp_backend_failure*) {
        *out = memory;
        return ddp_status{DDP_OK};
    };
    made.deallocate = [](void*, void*) { calls += " deallocate"; };
    made.leave = [](void*) { calls += " leave"; };
    made.struct_size = sizeof made;
    made.name = "leaving";
    ASSERT_EQ(ddp_backend_register(&made, nullptr), DDP_OK);
    static ddp_backend older = made;
    older.struct_size = offsetof(ddp_backend, leave);
    older.name = "not-leaving";
    ASSERT_EQ(ddp_backend_register(&older, nullptr), DDP_OK);
    for (const auto& [name, expected] : {std::pair{"leaving", " leave deallocate destroy"},
                                         std::pair{"not-leaving", " deallocate destroy"}}) {
        calls.clear();
        ddp_group_options options;
        ddp_group_options_init(&options);
        options.rank = 0;
        options.world_size = 1;
        options.backend = name;
        ddp_group* group = nullptr;
        ASSERT_EQ(ddp_group_create(&options, &group, nullptr), DDP_OK);
        void* held = nullptr;
        ASSERT_EQ(ddp_mem_alloc(group, sizeof memory, &held, nullptr), DDP_OK);
        EXPECT_EQ(held, memory);
        ddp_group_free(group);
        EXPECT_EQ(ddp_mem_free(held, nullptr), DDP_OK);
        EXPECT_EQ(calls, expected) << name;
    }
}

// Without the signature of another rank: libddp has nothing to compare.
TEST(FailingBackend, AMismatchOfItsOwnKeepsItsWords) {
    out_of_memory = false;
    code = DDP_ERROR_MISMATCH;
    fail_on_rank_0([](ddp_error* error) {
        EXPECT_EQ(ddp_error_code(error), DDP_ERROR_MISMATCH);
        EXPECT_EQ(ddp_error_rank(error), 0);
        EXPECT_THAT(ddp_error_message(error), HasSubstr("the cable is cut"));
    });
    code = DDP_ERROR_RANK_FAILED;
}

TEST(FailingBackend, WithoutATextTheCallAndItsStatusAreNamed) {
    out_of_memory = false;
    text = "";
    code = DDP_ERROR_IO;
    fail_on_rank_0([](ddp_error* error) {
        EXPECT_EQ(ddp_error_code(error), DDP_ERROR_IO);
        EXPECT_STREQ(
            ddp_error_message(error),
            "rank 0: backend failing: run() of allreduce returned DDP_ERROR_IO and no message");
    });
    code = 5;  // no status
    fail_on_rank_0([](ddp_error* error) {
        EXPECT_EQ(ddp_error_code(error), DDP_ERROR_INTERNAL);
        EXPECT_EQ(ddp_error_rank(error), 0);
        EXPECT_STREQ(ddp_error_message(error),
                     "rank 0: backend failing: run() of allreduce returned 5 and no message");
    });
    text = "the cable is cut";
    fail_on_rank_0([](ddp_error* error) {
        EXPECT_THAT(
            ddp_error_message(error),
            HasSubstr("the cable is cut (run() of allreduce returned 5, which is no status)"));
    });
    code = DDP_ERROR_RANK_FAILED;
}

TEST(FailingBackend, AnExceptionBreaksTheGroup) {
    out_of_memory = true;
    fail_on_rank_0([](ddp_error* error) {
        EXPECT_EQ(ddp_error_code(error), DDP_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(ddp_error_rank(error), 0);
    });
}

}  // namespace failing_backend_test
