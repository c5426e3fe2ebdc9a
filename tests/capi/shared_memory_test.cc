// Memory that ranks of one host share: memory of a group, and gradients that nobody copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

#include "capi/bad_input.h"
#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"
#include "support/slack.h"

namespace shared_memory_test {

using ddp::detail::call;

std::uint64_t copied_bytes(ddp::Context& context) {
    ddp_stats stats{};
    stats.struct_size = sizeof stats;
    call(ddp_stats_get, context.get(), &stats);
    return stats.copied_bytes;
}

// Long enough not to travel with the announcements; three buckets at a cap of 1 MiB.
const std::vector<std::int64_t> kSizes = {300'000, 40'000, 270'001, 270'000};
constexpr std::uint64_t kGradientBytes = 4 * (300'000 + 40'000 + 270'001 + 270'000);
constexpr int kSteps = 3;

// How many bytes each rank copied in kSteps steps whose results are right.
std::vector<std::uint64_t> copied_in_training(const RankOptions& options, bool view) {
    std::vector<std::uint64_t> copied(static_cast<std::size_t>(options.world));
    on_ranks(options, [&](int rank, ddp_group* group) {
        Model model(group, kSizes, view);
        model.context.commit();
        for (int step = 0; step < kSteps; ++step) {
            model.context.step_begin();
            for (int p = model.count() - 1; p >= 0; --p) {
                model.fill(p, static_cast<float>(rank + step));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            const float mean = static_cast<float>(options.world - 1) / 2 + static_cast<float>(step);
            for (int p = 0; p < model.count(); ++p) {
                EXPECT_EQ(model.grad(p)[0], mean);
                EXPECT_EQ(model.grad(p)[1000], mean + 1000);
            }
        }
        copied[static_cast<std::size_t>(rank)] = copied_bytes(model.context);
    });
    return copied;
}

TEST(SharedMemory, ViewsAreNotCopiedAtAll) {
    for (int world : {2, 4})
        EXPECT_THAT(copied_in_training({world, "shm"}, true), testing::Each(0u))
            << world << " ranks";
}

// Into the bucket and back, and nothing more.
TEST(SharedMemory, OtherGradientsAreCopiedTwice) {
    EXPECT_THAT(copied_in_training({2, "shm"}, false), testing::Each(2 * kSteps * kGradientBytes));
    EXPECT_THAT(copied_in_training({2, "tcp"}, false), testing::Each(2 * kSteps * kGradientBytes));
}

// A bucket is closed as soon as it holds a MiB, so that it is still in the cache; elsewhere at 25
// MiB.
TEST(SharedMemory, BucketsAreSmallByDefault) {
    for (const auto& [backend, buckets] : {std::pair("shm", 3), std::pair("tcp", 2)})
        on_ranks({2, backend}, [&, buckets = buckets](int, ddp_group* group) {
            Model model(group, kSizes, true);
            model.context.commit();
            EXPECT_EQ(ddp_context_bucket_count(model.context.get()), buckets);
        });
}

TEST(GroupMemory, IsReducedAndMayOutliveTheGroup) {
    for (const char* backend : {"shm", "tcp", "threads"}) {
        std::vector<void*> memory(2);
        on_ranks({2, backend}, [&](int rank, ddp_group* group) {
            constexpr std::size_t kCount = 100'000;
            void* mine = nullptr;
            call(ddp_mem_alloc, group, kCount * sizeof(float), &mine);
            auto* numbers = static_cast<float*>(mine);
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mine) % 64, 0u);
            for (std::size_t i = 0; i < kCount; ++i) {
                ASSERT_EQ(numbers[i], 0);
                numbers[i] = static_cast<float>(i % 1000) + static_cast<float>(rank);
            }
            call(ddp_allreduce, group, static_cast<const void*>(nullptr), mine, kCount, DDP_F32,
                 DDP_SUM, static_cast<ddp_work**>(nullptr));
            for (std::size_t i = 0; i < kCount; ++i)
                ASSERT_EQ(numbers[i], 2 * static_cast<float>(i % 1000) + 1);
            memory[static_cast<std::size_t>(rank)] = mine;
        });
        for (void* m : memory) {
            static_cast<float*>(m)[99'999] = 7;
            call(ddp_mem_free, m);
        }
    }
}

// It keeps its memory, and with it its end of the shared memory. The others need not wait for the
// timeout all the same.
TEST(GroupMemory, ARankThatLeavesIsNoticedAlthoughItKeepsItsMemory) {
    void* memory = nullptr;
    on_ranks({2, "shm"}, [&](int rank, ddp_group* group) {
        if (rank == 0) {
            call(ddp_mem_alloc, group, std::size_t{1000}, &memory);
            return;
        }
        const auto begin = std::chrono::steady_clock::now();
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_barrier(group, nullptr, &error), DDP_ERROR_RANK_FAILED);
        EXPECT_LT(std::chrono::steady_clock::now() - begin,
                  std::chrono::milliseconds(libddp::with_slack(5'000)));
        EXPECT_EQ(take_facts(error), (Facts{DDP_ERROR_RANK_FAILED, 0}));
    });
    static_cast<char*>(memory)[999] = 1;
    call(ddp_mem_free, memory);
}

// A backend that does not notice it: the others find out when their time is over.
TEST(GroupMemory, ATimeoutNamesTheRanksThatLeft) {
    for (const int world : {2, 4}) {
        RankOptions options(world, "threads");
        options.timeout_ms = static_cast<long>(libddp::with_slack(2'000));
        on_ranks(options, [&](int rank, ddp_group* group) {
            if (rank < world - 1) return;
            ddp_error* error = nullptr;
            EXPECT_EQ(ddp_barrier(group, nullptr, &error), DDP_ERROR_RANK_FAILED);
            EXPECT_EQ(ddp_error_rank(error), 0);
            const char* names =
                world == 2 ? "rank 0 left the group" : "ranks 0, 1, 2 left the group";
            EXPECT_THAT(take_message(error), testing::HasSubstr(names));
        });
    }
}

TEST(GroupMemory, BlocksComeAndGo) {
    on_ranks({2, "shm"}, [](int rank, ddp_group* group) {
        // More than the list of freed blocks remembers.
        for (int i = 0; i < 200; ++i) {
            void* mine = nullptr;
            const std::size_t count = 20'000 + static_cast<std::size_t>(i);
            call(ddp_mem_alloc, group, count * sizeof(double), &mine);
            static_cast<double*>(mine)[count - 1] = rank + i;
            call(ddp_allreduce, group, static_cast<const void*>(nullptr), mine, count, DDP_F64,
                 DDP_SUM, static_cast<ddp_work**>(nullptr));
            ASSERT_EQ(static_cast<double*>(mine)[count - 1], 2 * i + 1);
            ASSERT_EQ(static_cast<double*>(mine)[0], 0);
            call(ddp_mem_free, mine);
        }
    });
}

TEST(GroupMemory, BadInput) {
    int local = 0;
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_mem_free(nullptr, nullptr), DDP_OK);
    EXPECT_EQ(ddp_mem_free(&local, &error), DDP_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(take_facts(error), Facts{DDP_ERROR_INVALID_ARGUMENT});
    void* memory = nullptr;
    EXPECT_EQ(ddp_mem_alloc(nullptr, 8, &memory, nullptr), DDP_ERROR_INVALID_ARGUMENT);
    on_ranks({2, "shm"}, [](int, ddp_group* group) {
        expect_refused(
            {null_argument("ddp_mem_alloc", "memory", calling(ddp_mem_alloc, group, 8, nullptr))});
        void* mine = nullptr;
        EXPECT_EQ(ddp_mem_alloc(group, std::size_t{1} << 50, &mine, nullptr),
                  DDP_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(mine, nullptr);
        call(ddp_mem_alloc, group, std::size_t{0}, &mine);
        call(ddp_mem_free, mine);
        EXPECT_EQ(ddp_mem_free(mine, nullptr), DDP_ERROR_INVALID_ARGUMENT) << "freed twice";
    });
}

}  // namespace shared_memory_test
