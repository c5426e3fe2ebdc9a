// Averaging of models: which parameters, when, and over which ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::ElementsAre;

namespace averager_test {

// A model whose only value is a number, so that averages show who took part.
struct Number : Model {
    explicit Number(ddp_group* group) : Model(group, {1}, true) { context.commit(); }
    float& operator*() { return data[0][0]; }
};

// The mean of the numbers 2^rank of `count` consecutive ranks, to which `rank` belongs.
float mean_around(int rank, int count) {
    float sum = 0;
    for (int r = rank / count * count; r < rank / count * count + count; ++r)
        sum += static_cast<float>(1 << r);
    return sum / static_cast<float>(count);
}

// Takes steps, each with the number 2^rank, checks every average, and returns over how many ranks
// each was.
std::vector<int> run(ddp::Averager& averager, Number& number, int rank, int steps) {
    std::vector<int> ranks;
    for (int s = 0; s < steps; ++s) {
        *number = static_cast<float>(1 << rank);
        ranks.push_back(averager.step());
        EXPECT_EQ(*number, mean_around(rank, ranks.back() ? ranks.back() : 1)) << "step " << s;
    }
    return ranks;
}

TEST(PeriodicAverager, AveragesFromTheEndOfTheWarmUp) {
    for (const char* backend : {"threads", "threads-plain", "tcp"})
        on_ranks({4, backend}, [](int rank, ddp_group* group) {
            Number number(group);
            ddp::Averager averager(number.context, 3, 2);
            EXPECT_THAT(run(averager, number, rank, 10), ElementsAre(0, 0, 4, 0, 0, 4, 0, 0, 4, 0));
            EXPECT_EQ(averager.steps(), 10);
            ddp::Averager always(number.context, 1);
            EXPECT_THAT(run(always, number, rank, 3), ElementsAre(4, 4, 4));
            ddp::Averager sized(number.context, {2}, {4}, 1);
            EXPECT_THAT(run(sized, number, rank, 4), ElementsAre(0, 4, 0, 4));
        });
}

TEST(HierarchicalAverager, TheLongestPeriodCounts) {
    for (const char* backend : {"threads", "threads-plain"})
        on_ranks({8, backend}, [](int rank, ddp_group* group) {
            Number number(group);
            ddp::Averager averager(number.context, {1, 2, 8}, {2, 4, 8});
            EXPECT_THAT(run(averager, number, rank, 10), ElementsAre(8, 2, 4, 2, 4, 2, 4, 2, 8, 2));
            // Several periods count from the first step, whatever the warm-up.
            ddp::Averager later(number.context, {2, 4}, {2, 8}, 3);
            EXPECT_THAT(run(later, number, rank, 9), ElementsAre(0, 0, 0, 0, 8, 0, 2, 0, 8));
            ddp::Averager lonely(number.context, {1, 3}, {1, 8});
            EXPECT_THAT(run(lonely, number, rank, 4), ElementsAre(8, 1, 1, 8));
        });
}

TEST(HierarchicalAverager, OverGloo) {
    on_ranks({4, "tcp"}, [](int rank, ddp_group* group) {
        Number number(group);
        ddp::Averager averager(number.context, {2, 4}, {2, 4}, 1);
        EXPECT_THAT(run(averager, number, rank, 9), ElementsAre(0, 0, 2, 0, 4, 0, 2, 0, 4));
    });
}

TEST(Averager, StepsCanBeRestored) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Number number(group);
        ddp::Averager averager(number.context, 4);
        EXPECT_EQ(averager.steps(), 0);
        run(averager, number, rank, 3);
        EXPECT_EQ(averager.steps(), 3);
        ddp::Averager resumed(number.context, 4);
        resumed.set_steps(averager.steps());
        EXPECT_EQ(resumed.steps(), 3);
        EXPECT_THAT(run(resumed, number, rank, 3), ElementsAre(0, 2, 0));
    });
}

TEST(Averager, RanksAtDifferentStepsNotice) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Number number(group);
        ddp::Averager averager(number.context, 1);
        averager.set_steps(rank);
        EXPECT_EQ(facts_of([&] { averager.step(); }).status, DDP_ERROR_MISMATCH);
        EXPECT_EQ(averager.steps(), rank) << "a step that fails is not counted";
    });
}

TEST(Averager, AFailureWithinASubgroupReachesEveryRank) {
    on_ranks({4}, [](int rank, ddp_group* group) {
        Number number(group);
        ddp::Averager averager(number.context, {1, 8}, {2, 4});
        averager.set_steps(rank == 1 ? 2 : 1);  // its pair is at step 1, and so are the others
        try {
            averager.step();
            for (;;)
                number.context.step_begin(), number.context.grad_ready(0),
                    number.context.finalize();
        } catch (const ddp::Error& e) {
            EXPECT_EQ(e.status(), DDP_ERROR_MISMATCH) << e.what();
        }
    });
}

TEST(Averager, FollowsItsContextOnlyWhileItHasNoSubgroups) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Number number(group);
        ddp::Averager periodic(number.context, 1), hierarchical(number.context, {1, 2}, {1, 2});
        const auto other = BorrowedGroup(group).split(0, rank);
        number.context.set_group(other);
        EXPECT_THAT(run(periodic, number, rank, 2), ElementsAre(2, 2));
        EXPECT_EQ(facts_of([&] { hierarchical.step(); }), Facts{DDP_ERROR_INVALID_STATE});
    });
}

struct Values {
    std::vector<float> f32;
    std::vector<double> f64, large;
    std::vector<std::uint16_t> bf16;
    std::vector<std::int32_t> i32;
    std::vector<float> ignored;
};

// A model of every kind of parameter, larger than one message.
class Mixed {
public:
    static constexpr std::size_t kLarge = (std::size_t{60} << 20) / sizeof(double) + 3;

    Mixed(ddp_group* group, int rank, const ddp_context_options& options)
        : borrowed_(group), context(borrowed_, options) {
        const auto r = static_cast<float>(rank);
        values = {{r, 2 * r, 3 * r}, {10.0 * r}, std::vector<double>(kLarge), {},
                  {rank, rank},      {r}};
        for (std::size_t k = 0; k < kLarge; ++k)
            values.large[k] = rank * 3.0 + static_cast<double>(k);
        values.bf16 = {static_cast<std::uint16_t>(rank == 0 ? 0x3f80 : 0x4040)};  // 1 or 3
        context.add_param<float>("a", {3}, values.f32.data());
        context.add_param<double>("b", {1}, values.f64.data());
        context.add_param<double>("large", {static_cast<std::int64_t>(kLarge)},
                                  values.large.data());
        context.add_param<std::int32_t>("integers", {2}, values.i32.data());
        context.add_param<float>("ignored", {1}, values.ignored.data(), nullptr, DDP_PARAM_IGNORED);
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = "bf16";
        desc.dtype = DDP_BF16;
        desc.data = values.bf16.data();
        ddp_param made = -1;
        ddp::detail::call(ddp_register_param, context.get(),
                          static_cast<const ddp_param_desc*>(&desc), &made);
    }

private:
    BorrowedGroup borrowed_;

public:
    ddp::Context context;
    Values values;
};

TEST(AverageParameters, TakesFloatingPointValuesOfAnySize) {
    for (const char* backend : {"threads", "threads-plain"})
        on_ranks({2, backend}, [](int rank, ddp_group* group) {
            auto options = ddp::Context::defaults();
            options.flags = DDP_CONTEXT_NO_INITIAL_BROADCAST;
            Mixed m(group, rank, options);
            m.context.commit();
            ddp::average_parameters(m.context);
            EXPECT_THAT(m.values.f32, ElementsAre(0.5f, 1, 1.5f));
            EXPECT_THAT(m.values.f64, ElementsAre(5));
            for (std::size_t k = 0; k < Mixed::kLarge; ++k)
                ASSERT_EQ(m.values.large[k], 1.5 + static_cast<double>(k)) << k;
            EXPECT_THAT(m.values.bf16, ElementsAre(0x4000));  // 2
            EXPECT_THAT(m.values.i32, ElementsAre(rank, rank));
            EXPECT_THAT(m.values.ignored, ElementsAre(static_cast<float>(rank)));
        });
}

TEST(AverageParameters, OverAnotherGroup) {
    on_ranks({4}, [](int rank, ddp_group* group) {
        Number number(group);
        const auto pair = BorrowedGroup(group).split(rank / 2, rank);
        *number = static_cast<float>(1 << rank);
        ddp::average_parameters(number.context, pair);
        EXPECT_EQ(*number, mean_around(rank, 2));
        ddp::average_parameters(number.context);
        EXPECT_EQ(*number, mean_around(rank, 4));
    });
}

}  // namespace averager_test
