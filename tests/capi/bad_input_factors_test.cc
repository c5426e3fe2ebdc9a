// Factored parameters that make no sense, and factors that are given in a wrong way.
#include <limits>

#include "capi/lone_context.h"

namespace bad_input_factors_test {

class BadFactors : public LoneContext {
protected:
    // 0: dense, 1: factored, 4 x 1.
    void commit_factored(std::uint32_t uses = 1) {
        add("dense");
        add("weight", DDP_PARAM_FACTORED, uses);
        commit({});
    }
    auto give(ddp_param param, const void* l, const void* r, std::size_t rows) {
        return [this, param, l, r, rows](ddp_error** e) {
            return ddp_grad_ready_factors(context, param, l, r, rows, e);
        };
    }
    auto ready(ddp_param param) {
        return [this, param](ddp_error** e) { return ddp_grad_ready(context, param, e); };
    }
    void expect_good_factors() {
        expect_accepted(give(1, left, right, 2));
        expect_accepted(ready(0));
        expect_accepted([this](ddp_error** e) { return ddp_finalize(context, e); });
        void* view = nullptr;
        ASSERT_EQ(ddp_grad_view(context, 1, &view, nullptr), DDP_OK);
        for (int i = 0; i < 4; ++i)
            EXPECT_EQ(static_cast<float*>(view)[i], left[i] * 9 + left[4 + i] * 10);
    }
    template <class Change>
    auto register_with(Change change) {
        ddp_param_desc d = desc("p");
        d.flags = DDP_PARAM_FACTORED;
        change(d);
        return [this, d](ddp_error** e) { return ddp_register_param(context, &d, &untouched, e); };
    }

    const float left[8] = {1, 2, 3, 4, 5, 6, 7, 8}, right[2] = {9, 10};
    Untouched<ddp_param> untouched;
};

TEST_F(BadFactors, Registration) {
    expect_refused({
        {"f16",
         DDP_ERROR_UNSUPPORTED,
         {"'p'", "dtype is f16", "f32 or f64"},
         register_with([](auto& d) { d.dtype = DDP_F16; })},
        {"bf16", DDP_ERROR_UNSUPPORTED, {"bf16"}, register_with([](auto& d) {
             d.dtype = DDP_BF16;
         })},
        {"i32", DDP_ERROR_UNSUPPORTED, {"i32"}, register_with([](auto& d) { d.dtype = DDP_I32; })},
        {"c64", DDP_ERROR_UNSUPPORTED, {"c64"}, register_with([](auto& d) { d.dtype = DDP_C64; })},
        {"dtype 77", kInvalid, {"dtype 77"}, register_with([](auto& d) { d.dtype = 77; })},
        {"scalar", kInvalid, {"'p'", "ndim is 0", "DDP_PARAM_FACTORED"}, register_with([](auto& d) {
             d.ndim = 0;
         })},
        {"sparse",
         kInvalid,
         {"'p'", "DDP_PARAM_FACTORED and DDP_PARAM_SPARSE exclude each other"},
         register_with([](auto& d) { d.flags |= DDP_PARAM_SPARSE; })},
        {"buffer",
         DDP_ERROR_UNSUPPORTED,
         {"ddp_register_buffer", "flags", "0x8"},
         [this](ddp_error** e) {
             auto d = desc("b");
             d.flags = DDP_PARAM_FACTORED;
             return ddp_register_buffer(context, &d, e);
         }},
    });
    commit_factored();
    expect_good_factors();
}

TEST_F(BadFactors, BeforeCommit) {
    add("weight", DDP_PARAM_FACTORED);
    expect_refused({
        {"context",
         kInvalid,
         {"ddp_grad_ready_factors", "context is NULL"},
         [this](ddp_error** e) { return ddp_grad_ready_factors(nullptr, 0, left, right, 2, e); }},
        {"ready", kState, {"ddp_grad_ready_factors", "ddp_commit"}, give(0, left, right, 2)},
    });
}

TEST_F(BadFactors, Announcements) {
    commit_factored();
    const std::string call = "ddp_grad_ready_factors";
    expect_refused({
        {"param -1", kInvalid, {call, "parameter -1"}, give(-1, left, right, 2)},
        {"param 2", kInvalid, {call, "parameter 2"}, give(2, left, right, 2)},
        {"dense", kInvalid, {call, "'dense'", "DDP_PARAM_FACTORED"}, give(0, left, right, 2), 0},
        {"left", kInvalid, {call, "left is NULL"}, give(1, nullptr, right, 2)},
        {"right", kInvalid, {call, "right is NULL"}, give(1, left, nullptr, 2)},
        {"rows",
         kInvalid,
         {call, "'weight'", "rows is 18446744073709551615"},
         give(1, left, right, SIZE_MAX)},
        {"rows",
         kInvalid,
         {call, "rows is 461168601842738791", "no memory holds more than 461168601842738790"},
         give(1, left, right, std::numeric_limits<std::int64_t>::max() / 20 + 1)},
        {"sparse",
         kInvalid,
         {"ddp_grad_ready_sparse", "'weight'", "DDP_PARAM_SPARSE"},
         [this](ddp_error** e) {
             return ddp_grad_ready_sparse(context, 1, nullptr, nullptr, 0, e);
         }},
    });
    expect_good_factors();
    expect_accepted(give(1, nullptr, nullptr, 0));
    expect_refused({
        {"twice", kState, {call, "'weight'", "announced twice"}, give(1, left, right, 2)},
        {"and whole", kState, {"ddp_grad_ready", "'weight'", "announced twice"}, ready(1)},
    });
    expect_accepted(ready(0));
    expect_accepted(calling(ddp_finalize_async, context));
    expect_refused({{"late", kState, {call, "ddp_finalize_async"}, give(1, left, right, 2)}});
    expect_accepted([this](ddp_error** e) { return ddp_finalize(context, e); });
    expect_good_factors();
    expect_good_step();
}

TEST_F(BadFactors, NotExpected) {
    commit_factored();
    const ddp_param weight = 1;
    ASSERT_EQ(ddp_set_frozen(context, &weight, 1, 1, nullptr), DDP_OK);
    expect_refused({{"frozen",
                     DDP_ERROR_MISMATCH,
                     {"ddp_grad_ready_factors", "'weight'", "frozen"},
                     give(1, left, right, 2)}});
    ASSERT_EQ(ddp_set_frozen(context, &weight, 1, 0, nullptr), DDP_OK);
    expect_good_factors();
}

// Announcing an ignored parameter does nothing, however it is done.
TEST_F(BadFactors, Ignored) {
    add("dense");
    add("weight", DDP_PARAM_FACTORED | DDP_PARAM_IGNORED);
    commit({});
    for (int i = 0; i < 2; ++i) expect_accepted(give(1, left, right, 2));
    expect_accepted(ready(1));
    expect_good_step({0});
}

TEST_F(BadFactors, Missing) {
    commit_factored(2);
    expect_accepted(give(1, left, right, 2));
    expect_accepted(ready(0));
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_finalize(context, &error), DDP_ERROR_MISSING_GRADIENT);
    const Facts facts = take_facts(error);
    EXPECT_EQ(facts, (Facts{DDP_ERROR_MISSING_GRADIENT, 0, 1, facts.bucket, 0}));
}

TEST_F(BadFactors, SharedBuckets) {
    commit_factored();
    expect_refused({{"plan",
                     kInvalid,
                     {"bucket 0", "factored parameter 'weight'", "alone"},
                     calling(ddp_plan_adopt, context,
                             R"({"libddp_plan": 1, "buckets": [["dense", "weight"]]})")}});
    expect_accepted(calling(ddp_plan_adopt, context,
                            R"({"libddp_plan": 1, "buckets": [["weight"], ["dense"]]})"));
    expect_good_step();
    expect_good_factors();
}

}  // namespace bad_input_factors_test
