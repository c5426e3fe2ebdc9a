// participation.h with arguments that make no sense, and with calls that come at the wrong time.
#include <limits>

#include "capi/lone_context.h"
#include "ddp/ddp.hpp"
#include "support/model.h"

namespace bad_input_participation_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr ddp_param kFirst[] = {0}, kBoth[] = {0, 1}, kUnknown[] = {0, 2}, kNegative[] = {-1};
constexpr ddp_param kFarOff[] = {1'000'000};

class BadParticipation : public LoneContext {
protected:
    // Lists of parameters that every call with such a list must refuse. invoke(params, count) is
    // the call.
    template <class Invoke>
    static void check_lists(const char* name, Invoke invoke) {
        SCOPED_TRACE(name);
        expect_refused({
            {"no list", kInvalid, {name, "params is NULL"}, invoke(nullptr, 1)},
            {"count -1",
             kInvalid,
             {name, "count is 18446744073709551615"},
             invoke(kBoth, SIZE_MAX)},
            {"2", kInvalid, {name, "parameter 2", "there are 2"}, invoke(kUnknown, 2)},
            {"-1", kInvalid, {name, "parameter -1"}, invoke(kNegative, 1)},
            {"10^6", kInvalid, {name, "parameter 1000000"}, invoke(kFarOff, 1)},
        });
        expect_accepted(invoke(nullptr, 0));
    }
    auto mark(const ddp_param* params, std::size_t count) {
        return calling(ddp_mark_unused, context, params, count);
    }
    auto freeze(const ddp_param* params, std::size_t count) {
        return calling(ddp_set_frozen, context, params, count, 1);
    }
    auto skip(const ddp_param* params, std::size_t count, std::int32_t authority = -1) {
        return calling(ddp_skip_params, context, params, count, authority);
    }

    Untouched<std::int32_t> used;
    Untouched<std::int64_t> share_begin, share_end;
};

TEST_F(BadParticipation, NullHandles) {
    EXPECT_EQ(ddp_skipped(nullptr, 0), -1);
    expect_refused({
        null_argument("ddp_mark_unused", "context", calling(ddp_mark_unused, nullptr, kBoth, 2)),
        null_argument("ddp_param_used", "context", calling(ddp_param_used, nullptr, 0, &used)),
        null_argument("ddp_set_frozen", "context", calling(ddp_set_frozen, nullptr, kBoth, 2, 1)),
        null_argument("ddp_skip_params", "context",
                      calling(ddp_skip_params, nullptr, kBoth, 2, -1)),
        null_argument("ddp_set_weight", "context", calling(ddp_set_weight, nullptr, 1.0)),
        null_argument("ddp_join", "context", calling(ddp_join, nullptr)),
        null_argument("ddp_share_batch", "context", calling(ddp_share_batch, nullptr, 8, 1, 0)),
        null_argument("ddp_batch_share", "context",
                      calling(ddp_batch_share, nullptr, &share_begin, &share_end)),
        null_argument("ddp_batch_time", "context", calling(ddp_batch_time, nullptr, 1)),
    });
}

TEST_F(BadParticipation, BeforeCommit) {
    recreate(DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_JOIN);
    add("a");
    expect_refused({
        {"mark_unused", kState, {"ddp_mark_unused", "ddp_commit"}, mark(kFirst, 1)},
        {"param_used",
         kState,
         {"ddp_param_used", "ddp_commit"},
         calling(ddp_param_used, context, 0, &used)},
        {"skip_params", kState, {"ddp_skip_params", "ddp_commit"}, skip(kFirst, 1)},
        {"join", kState, {"ddp_join", "ddp_commit"}, calling(ddp_join, context)},
        {"set_frozen: unknown",
         kInvalid,
         {"ddp_set_frozen", "parameter 2", "there are 1"},
         freeze(kUnknown, 2)},
    });
    EXPECT_EQ(ddp_skipped(context, 0), 0);
    expect_accepted(freeze(kFirst, 1));
    commit({"b"});
    expect_good_step({1});
}

TEST_F(BadParticipation, Lists) {
    recreate(DDP_CONTEXT_FIND_UNUSED);
    commit();
    check_lists("ddp_set_frozen", [this](auto... list) { return freeze(list...); });
    check_lists("ddp_skip_params", [this](auto... list) { return skip(list...); });
    check_lists("ddp_skip_params", [this](auto... list) { return skip(list..., 0); });
    check_lists("ddp_mark_unused", [this](auto... list) { return mark(list...); });
    for (ddp_param unknown : {-1, 2, 1'000'000}) EXPECT_EQ(ddp_skipped(context, unknown), -1);
    expect_refused({
        {"authority 1",
         kInvalid,
         {"ddp_skip_params", "authority is 1", "0 to 0"},
         skip(kFirst, 1, 1)},
        {"authority -2", kInvalid, {"ddp_skip_params", "authority is -2"}, skip(kFirst, 1, -2)},
    });
    for (ddp_param param : kBoth) EXPECT_EQ(ddp_skipped(context, param), 0);
    expect_accepted(calling(ddp_set_sync, context, 1));  // still idle: nothing above began a step
    expect_good_step();
}

TEST_F(BadParticipation, Used) {
    commit();
    const auto ask = [this](ddp_param param, std::int32_t* out) {
        return calling(ddp_param_used, context, param, out);
    };
    expect_refused({{"too early", kState, {"ddp_param_used", "no synced step"}, ask(0, &used)}});
    expect_good_step();
    expect_refused({
        {"no output", kInvalid, {"ddp_param_used", "used is NULL"}, ask(0, nullptr)},
        {"-1", kInvalid, {"ddp_param_used", "parameter -1"}, ask(-1, &used)},
        {"2", kInvalid, {"ddp_param_used", "parameter 2"}, ask(2, &used)},
        {"10^6", kInvalid, {"ddp_param_used", "parameter 1000000"}, ask(1'000'000, &used)},
    });
    expect_accepted(calling(ddp_grad_ready, context, 1));
    expect_refused({{"in a step", kState, {"ddp_param_used", "step 1"}, ask(0, &used)}});
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_accepted(calling(ddp_finalize, context));
}

TEST_F(BadParticipation, WithoutTheFlagOrReductionThatItNeeds) {
    commit();
    expect_refused({
        {"mark_unused", kState, {"ddp_mark_unused", "DDP_CONTEXT_FIND_UNUSED"}, mark(kFirst, 1)},
        {"set_weight",
         kState,
         {"ddp_set_weight", "WEIGHTED_MEAN"},
         calling(ddp_set_weight, context, 1.0)},
        {"join", kState, {"ddp_join", "DDP_CONTEXT_JOIN"}, calling(ddp_join, context)},
        {"batch_share",
         kState,
         {"ddp_batch_share", "ddp_share_batch before ddp_commit"},
         calling(ddp_batch_share, context, &share_begin, &share_end)},
        {"batch_time",
         kState,
         {"ddp_batch_time", "not shared"},
         calling(ddp_batch_time, context, 1)},
    });
    expect_good_step();
    recreate(DDP_CONTEXT_JOIN);
    commit();
    expect_refused({{"skip",
                     DDP_ERROR_UNSUPPORTED,
                     {"ddp_skip_params", "DDP_CONTEXT_JOIN"},
                     skip(kFirst, 1)}});
    expect_good_step();
}

TEST_F(BadParticipation, AStaticGraphIsKnownAfterItsFirstStep) {
    recreate(DDP_CONTEXT_STATIC_GRAPH);
    commit();
    expect_accepted(mark(kFirst, 1));
    expect_accepted(calling(ddp_grad_ready, context, 1));
    expect_accepted(calling(ddp_finalize, context));
    expect_refused({
        {"mark", kState, {"ddp_mark_unused"}, mark(kFirst, 1)},
        {"ready", DDP_ERROR_MISMATCH, {"'a'", "STATIC_GRAPH"}, calling(ddp_grad_ready, context, 0)},
    });
    expect_good_step({1});
}

TEST_F(BadParticipation, Weights) {
    recreate(0, DDP_REDUCTION_WEIGHTED_MEAN);
    const auto weigh = [this](double weight) { return calling(ddp_set_weight, context, weight); };
    const std::vector<Refusal> always = {
        {"NaN", kInvalid, {"ddp_set_weight", "weight is nan"}, weigh(kNaN)},
        {"infinity", kInvalid, {"ddp_set_weight", "weight is inf"}, weigh(kInfinity)},
        {"-infinity", kInvalid, {"ddp_set_weight", "weight is -inf"}, weigh(-kInfinity)},
        {"-1", kInvalid, {"ddp_set_weight", "weight is -1"}, weigh(-1)},
        {"-0.5", kInvalid, {"ddp_set_weight", "weight is -0.5"}, weigh(-0.5)},
    };
    expect_refused(always);
    commit();
    expect_refused(always);
    expect_good_step();
    expect_accepted(weigh(0));
    expect_refused(
        {{"no mean", kInvalid, {"ddp_step_begin", "sum to 0"}, calling(ddp_step_begin, context)}});
    expect_accepted(weigh(2));
    expect_accepted(calling(ddp_step_begin, context));
    expect_refused({{"begun", kState, {"ddp_set_weight", "step 1", "ddp_step_begin"}, weigh(3)}});
    for (ddp_param param : kBoth) expect_accepted(calling(ddp_grad_ready, context, param));
    expect_refused({{"in a step", kState, {"ddp_set_weight", "step 1"}, weigh(3)}});
    expect_accepted(calling(ddp_finalize, context));
    expect_good_step();
}

TEST_F(BadParticipation, AStepThatHasNotBegun) {
    recreate(0, DDP_REDUCTION_WEIGHTED_MEAN);
    commit();
    const std::vector<std::string> begin{"step 0 has not begun", "ddp_step_begin"};
    expect_refused({
        {"grad_ready", kState, begin, calling(ddp_grad_ready, context, 0)},
        {"finalize", kState, begin, calling(ddp_finalize, context)},
        {"finalize_async", kState, begin, calling(ddp_finalize_async, context)},
        {"step_discard", kState, begin, calling(ddp_step_discard, context)},
    });
    expect_good_step();
    expect_refused(
        {{"step_discard", kState, {"step 1 has not begun"}, calling(ddp_step_discard, context)}});
    expect_accepted(calling(ddp_step_begin, context));
    EXPECT_EQ(ddp_finalize(context, nullptr), DDP_ERROR_MISSING_GRADIENT)
        << "the refused call discarded this step";
}

TEST_F(BadParticipation, InTheMiddleOfAStep) {
    recreate(DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_JOIN);
    commit();
    expect_accepted(calling(ddp_step_begin, context));
    expect_accepted(calling(ddp_grad_ready, context, 1));
    const std::string step = "step 0 is under way";
    expect_refused({
        {"set_frozen", kState, {"ddp_set_frozen", step}, freeze(kFirst, 1)},
        {"skip_params", kState, {"ddp_skip_params", step}, skip(kFirst, 1)},
        {"join", kState, {"ddp_join", step}, calling(ddp_join, context)},
        {"mark what has come",
         kState,
         {"ddp_mark_unused", "'b'", "announced already"},
         mark(kBoth, 2)},
    });
    // a list that was refused marks none of its parameters
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_accepted(calling(ddp_finalize, context));
    EXPECT_EQ(ddp_skipped(context, 0), 0);
    expect_good_step();
}

TEST_F(BadParticipation, WhatIsMarkedDoesNotCome) {
    recreate(DDP_CONTEXT_FIND_UNUSED);
    commit();
    expect_accepted(mark(kFirst, 1));
    expect_accepted(mark(kFirst, 1));
    expect_refused(
        {{"ready", kState, {"'a'", "ddp_mark_unused"}, calling(ddp_grad_ready, context, 0)}});
    expect_accepted(calling(ddp_grad_ready, context, 1));
    expect_accepted(calling(ddp_finalize, context));
    expect_accepted([this](ddp_error** e) {
        std::int32_t answer = 1;
        const ddp_status status = ddp_param_used(context, 0, &answer, e);
        EXPECT_EQ(answer, 0);
        return status;
    });
    expect_good_step();
}

// A gradient that may not come is refused and begins no step, so that the program can mend what it
// forgot.
TEST_F(BadParticipation, ARefusedGradientBeginsNoStep) {
    commit();
    expect_accepted(freeze(kFirst, 1));
    const ddp_status mismatch = DDP_ERROR_MISMATCH;
    expect_refused(
        {{"frozen", mismatch, {"'a'", "ddp_set_frozen"}, calling(ddp_grad_ready, context, 0)}});
    expect_accepted(calling(ddp_set_frozen, context, kFirst, 1, 0));
    expect_accepted(skip(kFirst, 1));
    expect_refused(
        {{"skipped", mismatch, {"'a'", "ddp_skip_params"}, calling(ddp_grad_ready, context, 0)}});
    expect_accepted(skip(nullptr, 0));
    expect_good_step();
}

// The list of a rank that is not the authority is ignored, however wrong it is: a refusal would
// leave the authority waiting.
TEST(BadSkip, OnlyTheAuthoritysListIsRead) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Model model(group, {4, 4}, true);
        model.context.commit();
        const ddp_param* list = rank == 1 ? kFirst : kFarOff;
        const std::size_t count = rank == 1 ? 1 : SIZE_MAX;
        expect_accepted(calling(ddp_skip_params, model.context.get(), list, count, 1));
        EXPECT_TRUE(model.context.skipped(0));
        EXPECT_FALSE(model.context.skipped(1));
        model.context.grad_ready(1);
        model.context.finalize();
    });
}

// A rank without inputs meets the same weights as the others and waits until they have mended them.
TEST(BadWeights, AJoinedRankOutlastsWeightsWithoutAMean) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.flags = DDP_CONTEXT_JOIN;
        options.reduction = DDP_REDUCTION_WEIGHTED_MEAN;
        Model model(group, {4}, true, options);
        model.context.commit();
        if (rank == 1) {
            for (double weight : {0.0, std::numeric_limits<double>::max()}) {
                model.context.set_weight(weight);
                const char* sum = weight == 0 ? "sum to 0" : "sum to 1.79769e+308";
                expect_refused({{"sum",
                                 kInvalid,
                                 {"ddp_step_begin", sum},
                                 calling(ddp_step_begin, model.context.get())}});
            }
            model.context.set_weight(3);
            model.context.step_begin();
            model.fill(0, 8);
            model.context.grad_ready(0);
            model.context.finalize();
            EXPECT_TRUE(model.holds(0, 8));
        }
        model.context.join();
    });
}

// Where ddp_step_begin tells the other ranks whether the step is synced, the choice comes before
// it.
TEST_F(BadParticipation, SyncAfterTheRanksHaveExchangedIt) {
    for (bool join : {true, false}) {
        recreate(join ? DDP_CONTEXT_JOIN : 0,
                 join ? DDP_REDUCTION_MEAN : DDP_REDUCTION_WEIGHTED_MEAN);
        commit();
        expect_accepted(calling(ddp_set_sync, context, 0));
        expect_accepted(calling(ddp_set_sync, context, 1));
        expect_accepted(calling(ddp_step_begin, context));
        expect_refused({{"set_sync",
                         kState,
                         {"ddp_set_sync", "ddp_step_begin", "step 0"},
                         calling(ddp_set_sync, context, 0)}});
        for (ddp_param param : {1, 0}) expect_accepted(calling(ddp_grad_ready, context, param));
        expect_accepted(calling(ddp_finalize, context));
        expect_good_step();
    }
    recreate();
    commit();
    expect_accepted(calling(ddp_step_begin, context));
    expect_accepted(calling(ddp_set_sync, context, 1));  // otherwise the first gradient decides
    expect_good_step();
}

// A program that adds to gradients must say so, and libddp can only guess it.
TEST_F(BadParticipation, AMeanInTheUnusedGradientIsToldOnce) {
    recreate(DDP_CONTEXT_FIND_UNUSED);
    commit();
    expect_good_step();
    testing::internal::CaptureStderr();
    expect_good_step({1});
    const std::string said = testing::internal::GetCapturedStderr();
    for (const char* part :
         {"rank 0, step 1: the gradient of 'a' is unused on this rank, so it counts as zero",
          "the option accumulate (DDP_CONTEXT_ACCUMULATE in C)"})
        EXPECT_NE(said.find(part), std::string::npos) << said;
    testing::internal::CaptureStderr();
    expect_good_step({1});
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace bad_input_participation_test
