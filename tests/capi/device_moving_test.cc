// The memory of buckets on devices when a plan follows another.
#include <gtest/gtest.h>

#include "ddp/ddp.hpp"
#include "support/device_model.h"
#include "support/ranks.h"

namespace device_moving_test {

constexpr std::int64_t kCount = 10'000;
constexpr std::size_t kBytes = 40'000;

// A plan of six gradients: the first ones alone and the others in pairs, in the order of their numbers or
// turned round.
std::string pairs(int alone, bool turned) {
    std::string text;
    for (int p = 0; p < 6;) {
        std::string bucket = "[\"p" + std::to_string(p) + '"';
        if (p >= alone && p + 1 < 6) bucket += ", \"p" + std::to_string(++p) + '"';
        bucket += ']';
        ++p;
        if (text.empty())
            text = bucket;
        else
            text = turned ? bucket + ", " + text : text + ", " + bucket;
    }
    return R"({"libddp_plan": 1, "buckets": [)" + text + "]}";
}

class DeviceMovingTest : public DeviceTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, DeviceMovingTest, testing::Values("shm", "tcp", "streams"),
                         [](const auto& of) { return std::string(of.param); });

// [01][23][45], then turned, then [0][12][34][5], and back.
TEST_P(DeviceMovingTest, ValuesStayAndFewBucketsAreThereTwice) {
    on_ranks({1, GetParam()}, [&](int, ddp_group* group) {
        DeviceModel model(group, std::vector<std::int64_t>(6, kCount), true, {0});
        model.context.adopt_plan(pairs(0, false));
        model.context.commit();
        for (int p = 0; p < 6; ++p) model.give(p, static_cast<float>(p));
        model.finalize();
        std::vector<const float*> before;
        for (int p = 0; p < 6; ++p) before.push_back(model.grad(p));
        fake::most_bytes();
        const std::size_t at_first = fake::most_bytes();
        EXPECT_GE(at_first, 6 * kBytes);

        model.context.adopt_plan(pairs(0, true));
        model.context.step_begin();
        EXPECT_EQ(fake::most_bytes(), at_first);
        for (int p = 0; p < 6; ++p) {
            EXPECT_EQ(model.grad(p), before[static_cast<std::size_t>(p)]) << p;
            EXPECT_TRUE(model.holds(p, p)) << p;
        }
        for (const auto& plan : {pairs(1, false), pairs(1, true), pairs(0, false)}) {
            model.context.adopt_plan(plan);
            model.context.step_begin();
            EXPECT_LE(fake::most_bytes(), at_first + 3 * kBytes + 4096) << plan;
            for (int p = 0; p < 6; ++p) {
                EXPECT_TRUE(model.holds(p, p)) << p;
                model.context.grad_ready_on(p, model.stream(p));
            }
            model.finalize();
            for (int p = 0; p < 6; ++p) EXPECT_TRUE(model.holds(p, p)) << p;
        }
    });
}

// Two ranks, one of which runs out of memory: whichever allocation it is, gradients are where views
// say. All ranks go on in another group.
TEST_P(DeviceMovingTest, GradientsOutliveAMoveThatFails) {
    for (long left = 0; left < 4; ++left) {
        SCOPED_TRACE(left);
        on_ranks({2, GetParam()}, [&](int rank, ddp_group* group) {
            DeviceModel model(group, std::vector<std::int64_t>(6, kCount), true, {rank});
            model.context.adopt_plan(pairs(0, false));
            model.context.commit();
            ddp_group* next = nullptr;
            ddp::detail::call(ddp_group_split, group, 0, rank, &next);
            for (int p = 0; p < 6; ++p) model.fill(p, static_cast<float>(p + 2 * rank));
            model.context.adopt_plan(pairs(1, false));
            if (rank == 0) fake::set_allocations_left(0, left);
            try {
                model.context.step_begin();
                for (int p = 0; p < 6; ++p) model.context.grad_ready_on(p, model.stream(p));
                model.context.finalize();
                ADD_FAILURE() << "rank " << rank;
            } catch (const ddp::Error& error) {
                EXPECT_EQ(error.status(), DDP_ERROR_OUT_OF_MEMORY) << error.what();
                EXPECT_EQ(error.rank(), 0) << error.what();
            }
            if (rank == 0) fake::set_allocations_left(0, -1);
            ddp::detail::call(ddp_context_set_group, model.context.get(), next);
            for (int p = 0; p < 6; ++p) {
                EXPECT_TRUE(model.holds(p, p + 2 * rank)) << p;
                model.context.grad_ready_on(p, model.stream(p));
            }
            model.finalize();
            for (int p = 0; p < 6; ++p) EXPECT_TRUE(model.holds(p, p + 1)) << p;
            model.close();
            ddp_group_free(next);
        });
    }
}

}  // namespace device_moving_test
