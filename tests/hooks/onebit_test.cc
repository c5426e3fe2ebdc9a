// 1 bit an element: its levels, and that what a step leaves out comes later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hooks/any_model.h"
#include "support/ranks.h"

namespace onebit_test {

TEST(OneBit, LevelsAreTheMeansOfPositivesAndOthers) {
    on_ranks({1}, [](int, ddp_group* group) {
        for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64}) {
            AnyModel m(group, {{dtype, 11}, {dtype, 1}, {dtype, 3}}, true);
            m.context.use_hook("onebit", "min_elements=0");
            m.context.commit();
            const std::vector<Numbers> values{
                {1, -2, 3, 0, 5, -6, 3, -0.0, 0, -1, 3}, {-7}, {2, 4, 6}};
            m.step([&](int i) { return values[static_cast<std::size_t>(i)]; });
            EXPECT_EQ(m.numbers(0), (Numbers{3, -1.5, 3, -1.5, 3, -1.5, 3, -1.5, -1.5, -1.5, 3}));
            EXPECT_EQ(m.numbers(1), Numbers{-7});
            EXPECT_EQ(m.numbers(2), (Numbers{4, 4, 4}));
            // The others were left out, and are now all there is.
            m.step([&](int i) { return Numbers(values[static_cast<std::size_t>(i)].size()); });
            EXPECT_EQ(m.numbers(1), Numbers{0});
            EXPECT_EQ(m.numbers(2), (Numbers{-1, -1, 2}));
        }
    });
}

TEST(OneBit, FeedbackLosesNothing) {
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const bool varying : {true, false})
            for (const char* options :
                 {"min_elements=100", "min_elements=100,block=0", "min_elements=100,block=8"})
                expect_nothing_is_lost(dtype, 3, varying, 30, "onebit", options);
}

// The mean of what was applied comes ever nearer to the mean of the gradients.
TEST(OneBit, FeedbackConverges) {
    for (const bool varying : {true, false}) {
        const auto distance = [varying](int steps) {
            return expect_nothing_is_lost(DDP_F64, 2, varying, steps, "onebit",
                                          "min_elements=100") /
                   steps;
        };
        EXPECT_LT(distance(300), distance(10) / 3) << varying;
    }
}

TEST(OneBit, SendsOneBitAnElement) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        AnyModel m(group, {{DDP_F32, 80'000}, {DDP_F32, 1023}}, true);
        m.context.commit();
        const std::size_t rest = 8 + 10'000 + 1023 * 4;  // the small one is sent as it is
        std::size_t step = 0, before = 0;
        for (const auto& [options, blocks] :
             {std::pair{"block=0", 1u}, {"block=512", 157u}, {"block=16", 5000u}}) {
            m.context.use_hook("onebit", options);
            m.step([&](int i) { return some_numbers(m.param(i), rank, static_cast<int>(step)); });
            EXPECT_EQ(m.sent_bytes() - before, 8 * blocks + rest) << options;
            before = 0;
            ++step;
        }
    });
}

}  // namespace onebit_test
