// Plans that are saved, adopted, rebuilt; and what the statistics say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "ddp/ddp.hpp"
#include "support/model.h"
#include "support/ranks.h"

using testing::ElementsAre;

namespace plan_test {

ddp_context_options small_buckets(std::uint32_t flags = 0) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = 64;
    options.flags = flags;
    return options;
}

void step(Model& model, const std::vector<int>& order, float value = 1) {
    model.context.step_begin();
    for (int p : order) {
        model.fill(p, value);
        model.context.grad_ready(p);
    }
    model.context.finalize();
}

std::vector<int> buckets_of(const Model& model) {
    std::vector<int> result;
    for (int p = 0; p < model.count(); ++p)
        result.push_back(ddp_context_param_bucket(model.context.get(), p));
    return result;
}

TEST(Plan, ASavedPlanIsUsedFromTheFirstStep) {
    on_ranks({2}, [](int, ddp_group* group) {
        std::string plan;
        std::vector<int> rebuilt;
        {
            Model model(group, {20, 20, 20}, true, small_buckets());
            model.context.commit();
            step(model, {1, 2, 0});
            model.context.step_begin();
            rebuilt = buckets_of(model);
            EXPECT_THAT(rebuilt, ElementsAre(2, 0, 1));
            plan = model.context.plan();
        }
        Model model(group, {20, 20, 20}, true, small_buckets());
        model.context.adopt_plan(plan);
        model.context.commit();
        EXPECT_EQ(buckets_of(model), rebuilt);
        step(model, {2, 1, 0});
        model.context.step_begin();
        EXPECT_EQ(buckets_of(model), rebuilt) << "an adopted plan stays";
        EXPECT_EQ(model.context.stats().rebuilds, 0);
    });
}

TEST(Plan, APlanByHandBetweenSteps) {
    on_ranks({3}, [](int rank, ddp_group* group) {
        Model model(group, {20, 20, 20}, rank > 0, small_buckets());
        model.context.commit();
        model.fill(1, 7);
        model.context.adopt_plan(R"({"libddp_plan": 1, "buckets": [["p1"], ["p0", "p2"]]})");
        model.context.step_begin();
        EXPECT_THAT(buckets_of(model), ElementsAre(1, 0, 1));
        EXPECT_TRUE(model.holds(1, 7)) << "gradients move with their views";
        step(model, {0, 1, 2}, static_cast<float>(rank));
        for (int p : {0, 1, 2}) EXPECT_TRUE(model.holds(p, 1));
    });
}

TEST(Plan, RebuildsOnRequestAndAtIntervals) {
    on_ranks({2}, [](int, ddp_group* group) {
        auto options = small_buckets();
        options.rebuild_interval = 3;
        Model model(group, {20, 20, 20}, true, options);
        model.context.commit();
        step(model, {2, 1, 0});
        step(model, {0, 1, 2});  // not recorded
        EXPECT_THAT(buckets_of(model), ElementsAre(2, 1, 0));
        model.context.request_rebuild();
        // recorded; it is the third synced step, so the next is recorded again
        step(model, {0, 1, 2});
        step(model, {1, 0, 2});
        EXPECT_THAT(buckets_of(model), ElementsAre(0, 1, 2));
        step(model, {1, 0, 2});
        EXPECT_THAT(buckets_of(model), ElementsAre(1, 0, 2));
        EXPECT_EQ(model.context.stats().rebuilds, 2);
    });
}

TEST(Plan, ConsensusFollowsTheMeanOrder) {
    on_ranks({3}, [](int rank, ddp_group* group) {
        Model model(group, {20, 20, 20, 20}, true, small_buckets(DDP_CONTEXT_CONSENSUS_ORDER));
        model.context.commit();
        // Places of p0..p3 on the ranks: 0 1 2 3, 1 0 2 3, 3 0 1 2: sums 4 1 5 8.
        const std::vector<int> orders[] = {{0, 1, 2, 3}, {1, 0, 2, 3}, {1, 2, 3, 0}};
        step(model, orders[rank]);
        model.context.step_begin();
        EXPECT_THAT(buckets_of(model), ElementsAre(1, 0, 2, 3));
    });
}

TEST(Plan, CapsMayBeGivenOneByOne) {
    on_ranks({2}, [](int, ddp_group* group) {
        auto options = ddp::Context::defaults();
        const std::uint64_t caps[] = {40, 80};
        options.bucket_caps = caps;
        options.bucket_cap_count = 2;
        Model model(group, {10, 10, 10, 10}, true, options);
        model.context.commit();
        EXPECT_THAT(buckets_of(model), ElementsAre(2, 1, 1, 0));
        std::uint64_t sizes[8] = {};
        std::size_t count = 0;
        ASSERT_EQ(ddp_stats_bucket_sizes(model.context.get(), 1, sizes, 8, &count, nullptr),
                  DDP_OK);
        EXPECT_THAT(std::vector<std::uint64_t>(sizes, sizes + count), ElementsAre(40, 80, 40));
    });
}

TEST(Plan, DelayedParametersComeLastAndIgnoredOnesNever) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed, small_buckets());
        float grads[3][4] = {}, data[4] = {static_cast<float>(rank)};
        context.add_param<float>("ignored", {4}, data, grads[0], DDP_PARAM_IGNORED);
        context.add_param<float>("normal", {4}, nullptr, grads[1]);
        context.add_param<float>("delayed", {4}, nullptr, grads[2], DDP_PARAM_DELAYED);
        context.commit();
        EXPECT_EQ(data[0], static_cast<float>(rank)) << "ignored parameters are not sent";
        EXPECT_EQ(ddp_context_param_bucket(context.get(), 0), -1);
        EXPECT_EQ(ddp_context_param_bucket(context.get(), 1), 0);
        EXPECT_EQ(ddp_context_param_bucket(context.get(), 2), 1);
        for (int round = 0; round < 2; ++round) {
            for (auto& grad : grads) grad[0] = static_cast<float>(rank);
            context.step_begin();
            for (int p : {2, 0, 1}) context.grad_ready(p);
            context.finalize();
            EXPECT_EQ(grads[0][0], static_cast<float>(rank));
            EXPECT_EQ(grads[1][0], 0.5f);
            EXPECT_EQ(grads[2][0], 0.5f);
        }
    });
}

TEST(Stats, TellWhatHappened) {
    on_ranks({2}, [](int, ddp_group* group) {
        Model model(group, {20, 30}, true, small_buckets(DDP_CONTEXT_FIND_UNUSED));
        EXPECT_EQ(model.context.stats().param_count, 2);
        EXPECT_EQ(model.context.stats().bucket_count, 0);
        model.context.commit();
        step(model, {1});
        ddp_stats s = model.context.stats();
        EXPECT_EQ(s.steps, 1);
        EXPECT_EQ(s.synced_steps, 1);
        EXPECT_EQ(s.bucket_count, 2);
        EXPECT_EQ(s.param_bytes, 200u);
        EXPECT_EQ(s.sent_bytes, 200u);
        EXPECT_EQ(s.unused_params, 1);
        EXPECT_EQ(s.unused_bytes, 80u);
        EXPECT_GT(s.comm_ns, 0);
        EXPECT_GE(s.comm_ns, s.overlap_ns);
        EXPECT_GT(s.backward_ns, 0);
        EXPECT_EQ(s.total_comm_ns, s.comm_ns);
        EXPECT_EQ(s.last_error, DDP_OK);
        std::int32_t order[4];
        std::size_t count = 0;
        ASSERT_EQ(ddp_stats_ready_order(model.context.get(), order, 4, &count, nullptr), DDP_OK);
        EXPECT_THAT(std::vector<std::int32_t>(order, order + count), ElementsAre(1, 0));
        EXPECT_THROW(model.context.grad_ready(9), ddp::Error);
        EXPECT_EQ(model.context.stats().last_error, DDP_ERROR_INVALID_ARGUMENT);
        model.context.set_sync(false);
        step(model, {0});
        EXPECT_EQ(model.context.stats().steps, 2);
        EXPECT_EQ(model.context.stats().synced_steps, 1);
    });
}

// Two buckets, 300 ms apart, each of which takes microseconds.
TEST(Stats, CommunicationIsWhatWasOnTheWay) {
    on_ranks({1}, [](int, ddp_group* group) {
        Model model(group, {20, 30}, true, small_buckets());
        model.context.commit();
        model.context.step_begin();
        model.context.grad_ready(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        model.context.grad_ready(0);
        model.context.finalize();
        const ddp_stats s = model.context.stats();
        EXPECT_GE(s.backward_ns, 300'000'000);
        EXPECT_LT(s.comm_ns, s.backward_ns - 100'000'000);
        EXPECT_LE(s.overlap_ns, s.comm_ns);
    });
}

}  // namespace plan_test
