// Bucket plans: PyTorch's reference cases, the launch order, offsets, hashes.
#include "core/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "device/memory.h"
#include "kernels/dtype.h"

using namespace libddp;
using testing::ElementsAre;

namespace {

PlanParam f32(std::size_t count) {
    return {count * 4, DDP_F32, {DDP_DEVICE_CPU, 0}};
}
PlanParam f64(std::size_t count) {
    return {count * 8, DDP_F64, {DDP_DEVICE_CPU, 0}};
}

std::vector<std::vector<int>> assign(const std::vector<PlanParam>& params,
                                     std::vector<std::size_t> caps) {
    std::vector<std::int32_t> order(params.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<std::vector<int>> result;
    for (const auto& bucket : make_plan(params, order, caps).buckets)
        result.emplace_back(bucket.params.begin(), bucket.params.end());
    return result;
}

using V = std::vector<int>;

// The cases of PyTorch's compute_bucket_assignment tests.
TEST(Plan, SingleLimitSingleDtype) {
    EXPECT_THAT(assign({f32(100), f32(200), f32(100), f32(50)}, {400}),
                ElementsAre(V{0}, V{1}, V{2}, V{3}));
}

TEST(Plan, SingleLimitMultiDtype) {
    EXPECT_THAT(assign({f32(50), f64(25), f32(50), f64(25), f32(50), f64(25)}, {400}),
                ElementsAre(V{0, 2}, V{1, 3}, V{4}, V{5}));
}

TEST(Plan, MultiLimitSingleDtype) {
    EXPECT_THAT(assign({f32(10), f32(10), f32(10), f32(10)}, {40, 80}),
                ElementsAre(V{0}, V{1, 2}, V{3}));
}

TEST(Plan, MultiLimitMultiDtype) {
    EXPECT_THAT(assign({f32(50), f64(25), f32(50), f64(25), f32(50), f64(25)}, {200, 400}),
                ElementsAre(V{0}, V{1}, V{2, 4}, V{3, 5}));
}

TEST(Plan, BucketsAreLaunchedWhenTheirLastGradientIsExpected) {
    // The f64 bucket opens first but is complete last, so it may not hold up the f32 ones.
    EXPECT_THAT(assign({f64(10), f32(100), f32(100), f64(10)}, {400}),
                ElementsAre(V{1}, V{2}, V{0, 3}));
}

TEST(Plan, OffsetsAreAlignedAndDisjoint) {
    auto plan = make_plan({f32(3), f32(0), f32(17), f32(1)}, {3, 2, 1, 0}, {1 << 20});
    ASSERT_EQ(plan.buckets.size(), 1u);
    EXPECT_THAT(plan.buckets[0].params, ElementsAre(3, 2, 1, 0));
    EXPECT_THAT(plan.buckets[0].offsets, ElementsAre(0, 64, 192, 192));
    EXPECT_EQ(plan.buckets[0].bytes, 256u);
}

TEST(Plan, TensorsWithoutElementsGetABucket) {
    auto plan = make_plan({f32(0)}, {0}, {100});
    ASSERT_EQ(plan.buckets.size(), 1u);
    EXPECT_EQ(plan.buckets[0].bytes, 0u);
}

// Gradients of `count` f32 that lie one after another, apart from those of `starts`, where ranges
// begin.
std::vector<PlanParam> in_place(std::vector<std::size_t> counts, std::vector<std::int32_t> starts) {
    std::vector<PlanParam> params;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        PlanParam& p = params.emplace_back(f32(counts[i]));
        p.in_place = true;
        const auto id = static_cast<std::int32_t>(i);
        p.follows = std::find(starts.begin(), starts.end(), id) == starts.end() ? id - 1 : -1;
    }
    return params;
}

TEST(Plan, InPlaceBucketsAreRangesWithoutGaps) {
    auto plan = make_plan(in_place({3, 17, 1, 5}, {0}), {3, 2, 1, 0}, {40});
    ASSERT_EQ(plan.buckets.size(), 2u);
    EXPECT_THAT(plan.buckets[0].params, ElementsAre(1, 2, 3));
    EXPECT_THAT(plan.buckets[0].offsets, ElementsAre(0, 68, 72));
    EXPECT_EQ(plan.buckets[0].bytes, 92u);
    EXPECT_THAT(plan.buckets[1].params, ElementsAre(0));
    EXPECT_EQ(plan.buckets[1].bytes, 12u);
}

TEST(Plan, TheOrderDoesNotMoveWhatIsInPlace) {
    const auto params = in_place({10, 10, 10, 10}, {0});
    EXPECT_THAT(assign(params, {80}), ElementsAre(V{0, 1}, V{2, 3}));
    const auto plan = make_plan(params, {2, 3, 0, 1}, {80});
    EXPECT_THAT(plan.buckets[0].params, ElementsAre(2, 3));
    EXPECT_THAT(plan.buckets[1].params, ElementsAre(0, 1));
}

TEST(Plan, InPlaceRangesEndWhereMemoryDoes) {
    EXPECT_THAT(assign(in_place({10, 10, 10, 10}, {0, 2}), {1000}), ElementsAre(V{0, 1}, V{2, 3}));
}

TEST(Plan, InPlaceRangesEndAtAnotherClassAndAtParametersThatAreNotReduced) {
    auto params = in_place({10, 10, 10, 10}, {0});
    params[1].bucket_class = BucketClass::kDelayed;
    EXPECT_THAT(assign(params, {1000}), ElementsAre(V{0}, V{2, 3}, V{1}));
    params = in_place({10, 10, 10}, {0});
    auto plan = make_plan(params, {0, 2}, {1000});
    ASSERT_EQ(plan.buckets.size(), 2u);
    EXPECT_THAT(plan.buckets[0].params, ElementsAre(0));
    EXPECT_THAT(plan.buckets[1].params, ElementsAre(2));
}

// The caps are counted apart from those of gradients that live in buckets.
TEST(Plan, InPlaceGradientsHaveCapsOfTheirOwn) {
    auto params = in_place({10, 10, 10}, {0});
    params.push_back(f32(10));
    params.push_back(f32(10));
    EXPECT_THAT(assign(params, {40, 80}), ElementsAre(V{0, 1}, V{2}, V{3}, V{4}));
}

TEST(Plan, HashTellsPlansApart) {
    std::vector<PlanParam> params{f32(10), f32(20), f32(30)};
    auto a = make_plan(params, {0, 1, 2}, {1000}), b = make_plan(params, {2, 1, 0}, {1000}),
         c = make_plan(params, {0, 1, 2}, {10});
    EXPECT_EQ(hash_plan(a), hash_plan(make_plan(params, {0, 1, 2}, {1000})));
    EXPECT_NE(hash_plan(a), hash_plan(b));
    EXPECT_NE(hash_plan(a), hash_plan(c));
    EXPECT_TRUE(a == a);
    EXPECT_FALSE(a == b);
}

}  // namespace
