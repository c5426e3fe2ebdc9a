// ddp_put: gradients that lie somewhere else than where libddp reads them.
#include <numeric>

#include "capi/bad_input.h"
#include "capi/lone_context.h"
#include "ddp/ddp.hpp"
#include "support/model.h"
#include "support/ranks.h"

namespace put_test {

std::vector<float> counting(std::size_t count, float first) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
}

class PutTest : public testing::TestWithParam<bool> {
protected:
    static bool view() { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Kinds, PutTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "view" : "copy"; });

// The gradient is another array in each step, and what was in the place before does not matter.
TEST_P(PutTest, TheMeanIsThatOfWhatIsPut) {
    on_ranks({3, "shm"}, [](int rank, ddp_group* group) {
        Model model(group, {300, 7}, view());
        model.context.commit();
        for (int step = 0; step < 4; ++step) {
            model.context.step_begin();
            for (int p : {1, 0}) {
                model.fill(p, -1000);
                const auto gradient = counting(model.size(p), static_cast<float>(rank + step));
                model.context.put(p, gradient.data());
            }
            model.context.finalize();
            for (int p : {0, 1}) EXPECT_TRUE(model.holds(p, static_cast<float>(1 + step)));
        }
    });
}

TEST_P(PutTest, InUnsyncedStepsItReplacesOrAdds) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        Model model(group, {5}, view());
        model.context.commit();
        const std::vector<float> gradient(5, static_cast<float>(rank + 1));
        for (const std::uint32_t flags : {0u, std::uint32_t{DDP_PUT_ADD}}) {
            // the result of the first is in the place of the second
            for (int round = 0; round < 2; ++round) {
                for (const bool sync : {false, false, true}) {
                    model.context.set_sync(sync);
                    model.context.put(0, gradient.data(), flags);
                    model.context.finalize();
                }
                EXPECT_TRUE(model.holds(0, flags ? 4.5f : 1.5f, 0));
            }
        }
    });
}

TEST_P(PutTest, SeveralUsesAddUp) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::vector<float> data(4), own(4);
        context.add_param<float>("shared", {4}, data.data(), view() ? nullptr : own.data(), 0, 3);
        context.commit();
        const std::vector<float> gradient(4, static_cast<float>(rank + 1));
        for (int step = 0; step < 3; ++step) {
            for (int use = 0; use < 3; ++use) context.put(0, gradient.data(), DDP_PUT_ADD);
            context.finalize();
            EXPECT_EQ((view() ? context.grad_view<float>(0) : own.data())[3], 4.5f);
        }
    });
}

// Values that the program wrote there itself are not copied.
TEST_P(PutTest, ThePlaceItselfMayBePut) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        Model model(group, {4}, view());
        model.context.commit();
        model.fill(0, static_cast<float>(2 * rank));
        model.context.put(0, model.grad(0));
        model.context.finalize();
        EXPECT_TRUE(model.holds(0, 1));
    });
}

// One parameter with factors, which two announcements complete.
struct Factored {
    explicit Factored(ddp_group* group) : borrowed(group), context(borrowed) {
        context.add_param<float>("w", {2, 3}, data.data(), nullptr, DDP_PARAM_FACTORED, 2);
        context.commit();
    }
    void give_factors() { context.factors_grad_ready(0, left, right, 1); }
    std::vector<float> mean() {
        const float* view = context.grad_view<float>(0);
        return {view, view + data.size()};
    }

    BorrowedGroup borrowed;
    ddp::Context context;
    std::vector<float> data = std::vector<float>(6);
    const float left[2] = {1, 0}, right[3] = {1, 1, 1};
};

TEST(Put, OfFactoredParametersIsAPartBesideTheFactors) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        Factored model(group);
        for (int step = 0; step < 2; ++step) {
            model.give_factors();
            const std::vector<float> gradient(6, static_cast<float>(rank));
            model.context.put(0, gradient.data(), DDP_PUT_ADD);
            model.context.finalize();
            EXPECT_EQ(model.mean(), (std::vector<float>{1.5, 1.5, 1.5, 0.5, 0.5, 0.5}));
        }
    });
}

// Without DDP_PUT_ADD it takes the place of what unsynced steps and other uses have given.
TEST(Put, ReplacesFactors) {
    on_ranks({2, "threads"}, [](int rank, ddp_group* group) {
        Factored model(group);
        const std::vector<float> gradient(6, static_cast<float>(rank));
        for (bool sync : {false, true}) {
            model.context.set_sync(sync);
            model.give_factors();
            if (sync)
                model.context.put(0, gradient.data());
            else
                model.give_factors();
            model.context.finalize();
        }
        EXPECT_EQ(model.mean(), std::vector<float>(6, 0.5));
    });
}

class PutErrors : public LoneContext {};

TEST_F(PutErrors, NameWhatIsWrongAndCopyNothing) {
    add("w");
    add("rows", DDP_PARAM_SPARSE);
    const float gradient[4] = {1, 2, 3, 4};
    expect_refused({{"before commit",
                     DDP_ERROR_INVALID_STATE,
                     {"ddp_put", "ddp_commit"},
                     calling(ddp_put, context, 0, gradient, 0u)}});
    ASSERT_EQ(ddp_commit(context, nullptr), DDP_OK);
    void* place = nullptr;
    ASSERT_EQ(ddp_grad_view(context, 0, &place, nullptr), DDP_OK);
    auto* view = static_cast<float*>(place);
    expect_refused({{"no context",
                     DDP_ERROR_INVALID_ARGUMENT,
                     {"ddp_put", "context"},
                     calling(ddp_put, static_cast<ddp_context*>(nullptr), 0, gradient, 0u)}});
    expect_refused({{"NULL",
                     DDP_ERROR_INVALID_ARGUMENT,
                     {"ddp_put", "gradient is NULL", "'w'", "4 elements"},
                     calling(ddp_put, context, 0, static_cast<const float*>(nullptr), 0u),
                     0}});
    expect_refused({{"flags",
                     DDP_ERROR_UNSUPPORTED,
                     {"ddp_put", "flags", "0x8"},
                     calling(ddp_put, context, 0, gradient, 8u)}});
    expect_refused({{"no such parameter",
                     DDP_ERROR_INVALID_ARGUMENT,
                     {"ddp_put", "7"},
                     calling(ddp_put, context, 7, gradient, 0u)}});
    expect_refused({{"sparse",
                     DDP_ERROR_INVALID_ARGUMENT,
                     {"ddp_put", "'rows'", "ddp_grad_ready_sparse"},
                     calling(ddp_put, context, 1, gradient, 0u)}});
    expect_refused({{"overlap",
                     DDP_ERROR_INVALID_ARGUMENT,
                     {"ddp_put", "overlaps", "'w'", "ddp_grad_ready"},
                     calling(ddp_put, context, 0, view + 1, 0u)}});
    expect_refused({{"the place added to itself",
                     DDP_ERROR_INVALID_ARGUMENT,
                     {"ddp_put", "overlaps", "'w'"},
                     calling(ddp_put, context, 0, view, std::uint32_t{DDP_PUT_ADD})}});
    EXPECT_EQ(view[3], 0);
    EXPECT_EQ(ddp_step_begin(context, nullptr), DDP_OK);  // no step has begun

    ASSERT_EQ(ddp_put(context, 0, gradient, 0, nullptr), DDP_OK);
    const float other[4] = {9, 9, 9, 9};
    expect_refused({{"twice",
                     DDP_ERROR_INVALID_STATE,
                     {"ddp_put", "'w'", "announced twice"},
                     calling(ddp_put, context, 0, other, 0u)}});
    ASSERT_EQ(ddp_grad_ready_sparse(context, 1, nullptr, nullptr, 0, nullptr), DDP_OK);
    ASSERT_EQ(ddp_finalize(context, nullptr), DDP_OK);
    EXPECT_EQ(view[3], 4);
}

TEST_F(PutErrors, NothingHappensForIgnoredAndEmptyParameters) {
    add("w");
    add("ignored", DDP_PARAM_IGNORED);
    const std::int64_t none[1] = {0};
    auto d = desc("empty");
    d.shape = none;
    ddp_param empty = -1;
    ASSERT_EQ(ddp_register_param(context, &d, &empty, nullptr), DDP_OK);
    ASSERT_EQ(ddp_commit(context, nullptr), DDP_OK);
    const float gradient[4] = {1, 2, 3, 4};
    EXPECT_EQ(ddp_put(context, 1, nullptr, 0, nullptr), DDP_OK);
    EXPECT_EQ(ddp_put(context, empty, nullptr, 0, nullptr), DDP_OK);
    EXPECT_EQ(ddp_put(context, 0, gradient, 0, nullptr), DDP_OK);
    EXPECT_EQ(ddp_finalize(context, nullptr), DDP_OK);
}

}  // namespace put_test
