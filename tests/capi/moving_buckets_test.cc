// The memory of buckets when a plan follows another: what stays where it is, what moves, and how
// much of it is there at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::ElementsAre;

namespace moving_buckets_test {

const std::vector<std::int64_t> kSizes = {300, 2'000, 40'000, 300'000, 70'000};
constexpr const char* kFirst =
    R"({"libddp_plan": 1, "buckets": [["p0", "p1"], ["p2"], ["p3"], ["p4"]]})";
// p2 and p3 stay, under other numbers. p0 and p1 are in another order.
constexpr const char* kSecond =
    R"({"libddp_plan": 1, "buckets": [["p3"], ["p1", "p0"], ["p4"], ["p2"]]})";
constexpr const char* kThird =
    R"({"libddp_plan": 1, "buckets": [["p3", "p0"], ["p1"], ["p4"], ["p2"]]})";

std::vector<const float*> addresses(Model& model) {
    std::vector<const float*> all;
    for (int p = 0; p < model.count(); ++p) all.push_back(model.grad(p));
    return all;
}

// Which views are where they were.
std::vector<bool> stays(Model& model, const std::vector<const float*>& before) {
    std::vector<bool> same;
    for (int p = 0; p < model.count(); ++p)
        same.push_back(model.grad(p) == before[static_cast<std::size_t>(p)]);
    return same;
}

void give(Model& model, float value) {
    for (int p = model.count() - 1; p >= 0; --p) {
        model.fill(p, value);
        model.context.grad_ready(p);
    }
}

void expect_mean(Model& model, int world, float value) {
    const float mean = value + static_cast<float>(world - 1) / 2;
    for (int p = 0; p < model.count(); ++p)
        EXPECT_TRUE(model.holds(p, mean)) << "p" << p << " of " << world << " ranks";
}

struct World {
    const char* backend;
    int ranks;
    unsigned round_robin = 0;
};

class MovingBuckets : public testing::TestWithParam<World> {
protected:
    RankOptions ranks() const {
        RankOptions options(GetParam().ranks, GetParam().backend);
        options.round_robin = GetParam().round_robin;
        return options;
    }
};
INSTANTIATE_TEST_SUITE_P(All, MovingBuckets,
                         testing::Values(World{"shm", 1}, World{"shm", 2}, World{"shm", 3},
                                         World{"shm", 4}, World{"tcp", 1}, World{"tcp", 2},
                                         World{"tcp", 4}, World{"threads", 3}),
                         [](const auto& of) {
                             return of.param.backend + std::to_string(of.param.ranks);
                         });

// A window of unsynced steps in between: its sum has not been sent yet.
TEST_P(MovingBuckets, ABucketWithTheSameParametersStaysWhereItIs) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Model model(group, kSizes, true);
        model.context.adopt_plan(kFirst);
        model.context.commit();
        const auto at_first = addresses(model);
        const auto own = static_cast<float>(rank);
        model.context.step_begin();
        give(model, own + 3);
        model.context.finalize();
        expect_mean(model, GetParam().ranks, 3);

        model.context.set_sync(false);
        model.context.step_begin();
        give(model, own + 5);
        model.context.finalize();
        model.context.set_sync(true);
        model.context.adopt_plan(kSecond);
        model.context.step_begin();
        EXPECT_THAT(stays(model, at_first), ElementsAre(false, false, true, true, true));
        for (int p = 0; p < model.count(); ++p)
            EXPECT_TRUE(model.holds(p, own + 5)) << "p" << p << " has not been sent";
        for (int p = 0; p < model.count(); ++p) model.context.grad_ready(p);
        model.context.finalize();
        expect_mean(model, GetParam().ranks, 5);

        const auto at_second = addresses(model);
        model.context.adopt_plan(kThird);
        model.context.step_begin();
        EXPECT_THAT(stays(model, at_second), ElementsAre(false, false, true, false, true));
        expect_mean(model, GetParam().ranks, 5);
        give(model, own + 7);
        model.context.finalize();
        expect_mean(model, GetParam().ranks, 7);
    });
}

// Such as the weight and the bias of a layer. Buckets are launched when the last of their gradients
// is there, so the order within one changes nothing.
TEST_P(MovingBuckets, AReadyOrderWithinBucketsMovesNothing) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = 1'000'000;
        options.first_bucket_cap_bytes = 100'000;
        Model model(group, kSizes, true, options);
        model.context.commit();
        const auto before = addresses(model);
        const std::int64_t generation = ddp_layout_generation(model.context.get());
        const std::string plan = model.context.plan();
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            EXPECT_THAT(stays(model, before), testing::Each(true));
            for (const int p : {4, 3, 1, 0, 2}) {
                model.fill(p, static_cast<float>(rank + step));
                model.context.grad_ready(p);
            }
            model.context.finalize();
            expect_mean(model, GetParam().ranks, static_cast<float>(step));
        }
        EXPECT_EQ(ddp_layout_generation(model.context.get()), generation);
        EXPECT_EQ(model.context.plan(), plan);
        EXPECT_EQ(model.context.stats().rebuilds, 0);
    });
}

// A bucket has memory of the group that reduces it: number 2 and 0 are of one, 1 and 3 of the
// other.
TEST(MovingBucketsOfRoundRobin, ABucketThatComesToAnotherGroupMoves) {
    RankOptions options(2, "shm");
    options.round_robin = 2;
    on_ranks(options, [](int rank, ddp_group* group) {
        Model model(group, kSizes, true);
        model.context.adopt_plan(kFirst);
        model.context.commit();
        const auto before = addresses(model);
        for (const char* plan : {kFirst, kSecond}) {
            model.context.adopt_plan(plan);
            model.context.step_begin();
            give(model, static_cast<float>(rank));
            model.context.finalize();
            expect_mean(model, 2, 0);
        }
        EXPECT_THAT(stays(model, before), ElementsAre(false, false, true, true, false));
        EXPECT_EQ(model.context.stats().copied_bytes, 0u);
    });
}

// The new group reaches only memory of its own.
TEST(MovingBucketsToAnotherGroup, EverythingMovesBetweenSharedMemories) {
    on_ranks({2, "shm"}, [](int rank, ddp_group* group) {
        Model model(group, kSizes, true);
        model.context.adopt_plan(kFirst);
        model.context.commit();
        for (int p = 0; p < model.count(); ++p) model.fill(p, static_cast<float>(rank));
        const auto before = addresses(model);
        ddp_group* next = nullptr;
        ddp::detail::call(ddp_group_split, group, 0, rank, &next);
        ddp::detail::call(ddp_context_set_group, model.context.get(), next);
        EXPECT_THAT(stays(model, before), testing::Each(false));
        for (int p = 0; p < model.count(); ++p) {
            EXPECT_TRUE(model.holds(p, static_cast<float>(rank)));
            model.context.grad_ready(p);
        }
        model.context.finalize();
        expect_mean(model, 2, 0);
        EXPECT_EQ(model.context.stats().copied_bytes, 0u);
        ddp::detail::call(ddp_context_set_group, model.context.get(), group);
        ddp_group_free(next);
    });
}

// A backend of one rank that counts the memory which it has given.
struct Given {
    std::mutex mutex;
    std::map<void*, std::size_t> blocks;
    std::size_t now = 0, peak = 0;
    long left = -1;  // allocations that succeed; -1: all
} given;

ddp_status allocate(void*, std::size_t bytes, ddp_device, void** memory, ddp_backend_failure*) {
    const std::lock_guard lock(given.mutex);
    if (given.left == 0) return DDP_ERROR_OUT_OF_MEMORY;
    if (given.left > 0) --given.left;
    const std::size_t size = (bytes + 64) / 64 * 64;
    *memory = std::aligned_alloc(64, size);
    std::memset(*memory, 0, size);
    given.blocks[*memory] = bytes;
    given.now += bytes;
    given.peak = std::max(given.peak, given.now);
    return DDP_OK;
}

void deallocate(void*, void* memory) {
    const std::lock_guard lock(given.mutex);
    const auto block = given.blocks.find(memory);
    ASSERT_NE(block, given.blocks.end());
    given.now -= block->second;
    given.blocks.erase(block);
    std::memset(memory, 0xff, 64);  // a NaN: nobody may read it any more
    std::free(memory);
}

ddp_group* counting_group() {
    static ddp_backend made{};
    made.struct_size = sizeof made;
    made.abi_version = DDP_BACKEND_ABI_VERSION;
    made.name = "counting";
    made.create = [](const ddp_backend_host*, void** transport, ddp_backend_failure*) {
        *transport = &made;
        return ddp_status{DDP_OK};
    };
    made.destroy = [](void*) {};
    made.capabilities = [](void*) { return std::uint32_t{DDP_BACKEND_COMPARES}; };
    made.abort = [](void*) {};
    made.run = [](void*, const ddp_collective*, ddp_backend_failure*) {
        return ddp_status{DDP_OK};
    };
    made.allocate = &allocate;
    made.deallocate = &deallocate;
    static const ddp_status registered = ddp_backend_register(&made, nullptr);
    EXPECT_EQ(registered, DDP_OK);
    ddp_group_options options;
    ddp_group_options_init(&options);
    options.rank = 0;
    options.world_size = 1;
    options.backend = "counting";
    ddp_group* group = nullptr;
    EXPECT_EQ(ddp_group_create(&options, &group, nullptr), DDP_OK);
    return group;
}

std::string plan_of(const std::vector<std::vector<int>>& buckets) {
    std::string text = R"({"libddp_plan": 1, "buckets": [)";
    for (const auto& bucket : buckets) {
        text += text.back() == '[' ? "[" : ", [";
        for (const int p : bucket)
            text += (text.back() == '[' ? "\"p" : ", \"p") + std::to_string(p) + '"';
        text += "]";
    }
    return text + "]}";
}

// Pairs of sixteen gradients of equal size, of which the first is alone and there is an odd one.
std::vector<std::vector<int>> pairs(int from) {
    std::vector<std::vector<int>> buckets;
    if (from > 0) buckets.push_back({0});
    for (int p = from; p < 16; p += 2)
        buckets.push_back(p + 1 < 16 ? std::vector{p, p + 1} : std::vector{p});
    return buckets;
}

constexpr std::size_t kBytes = 40'000;

// The bounds of all buckets move, and their order is turned round. Of a bucket that is left by one
// gradient the other one is still there when its new bucket comes.
TEST(MovingBucketsOfACountingBackend, FewAreThereTwice) {
    ddp_group* group = counting_group();
    {
        Model model(group, std::vector<std::int64_t>(16, 10'000), true);
        model.context.adopt_plan(plan_of(pairs(0)));
        model.context.commit();
        EXPECT_EQ(given.now, 16 * kBytes);
        model.context.step_begin();
        give(model, 3);
        model.context.finalize();
        auto turned = pairs(1);
        std::reverse(turned.begin(), turned.end());
        for (const auto& plan : {pairs(1), pairs(0), turned}) {
            given.peak = given.now;
            model.context.adopt_plan(plan_of(plan));
            model.context.step_begin();
            EXPECT_LE(given.peak, (16 + 3) * kBytes);
            EXPECT_EQ(given.now, 16 * kBytes);
            expect_mean(model, 1, 3);
            give(model, 3);
            model.context.finalize();
        }
        given.peak = given.now;
        std::rotate(turned.begin(), turned.begin() + 3, turned.end());
        model.context.adopt_plan(plan_of(turned));
        model.context.step_begin();
        EXPECT_EQ(given.peak, 16 * kBytes) << "the same buckets in another order";
        expect_mean(model, 1, 3);
    }
    ddp_group_free(group);
    EXPECT_EQ(given.now, 0u);
}

// Whichever bucket it is for which there is no memory: the gradients of those before have moved. On
// the way to another group this may happen again. In a third the context goes on.
TEST(MovingBucketsOfACountingBackend, GradientsOutliveAMoveThatFails) {
    for (long left = 0; left < 9; ++left) {
        SCOPED_TRACE(left);
        ddp_group* group = counting_group();
        ddp_group* next = counting_group();
        ddp_group* last = counting_group();
        {
            Model model(group, std::vector<std::int64_t>(16, 10'000), true);
            model.context.adopt_plan(plan_of(pairs(0)));
            model.context.commit();
            const std::int64_t generation = ddp_layout_generation(model.context.get());
            for (int p = 0; p < model.count(); ++p) model.fill(p, 5);
            model.context.adopt_plan(plan_of(pairs(1)));
            given.left = left;
            EXPECT_EQ(facts_of([&] { model.context.step_begin(); }),
                      (Facts{DDP_ERROR_OUT_OF_MEMORY, 0}));
            given.left = -1;
            EXPECT_GT(ddp_layout_generation(model.context.get()), generation);
            for (int p = 0; p < model.count(); ++p) EXPECT_TRUE(model.holds(p, 5)) << p;
            given.left = (left + 3) % 8;
            EXPECT_EQ(facts_of([&] {
                          ddp::detail::call(ddp_context_set_group, model.context.get(), next);
                      }),
                      (Facts{DDP_ERROR_OUT_OF_MEMORY, 0}));
            given.left = -1;
            for (int p = 0; p < model.count(); ++p) EXPECT_TRUE(model.holds(p, 5)) << p;
            ddp::detail::call(ddp_context_set_group, model.context.get(), last);
            for (int p = 0; p < model.count(); ++p) {
                EXPECT_TRUE(model.holds(p, 5)) << p;
                model.context.grad_ready(p);
            }
            model.context.finalize();
            expect_mean(model, 1, 5);
            EXPECT_EQ(given.now, 16 * kBytes);
        }
        ddp_group_free(group);
        ddp_group_free(next);
        ddp_group_free(last);
        EXPECT_EQ(given.now, 0u);
    }
}

// The program then writes beside the buckets, in memory that stays.
TEST(MovingBucketsWithACheck, ViewsDoNotMove) {
    on_ranks({2, "shm"}, [](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.flags = DDP_CONTEXT_CHECK;
        Model model(group, kSizes, true, options);
        model.context.adopt_plan(kFirst);
        model.context.commit();
        const auto before = addresses(model);
        for (const char* plan : {kSecond, kThird}) {
            model.context.adopt_plan(plan);
            model.context.step_begin();
            EXPECT_THAT(stays(model, before), testing::Each(true));
            give(model, static_cast<float>(rank));
            model.context.finalize();
            expect_mean(model, 2, 0);
        }
    });
}

}  // namespace moving_buckets_test
