// averager.h with arguments that make no sense, and with calls that come at the wrong time.
#include <limits>

#include "capi/lone_context.h"

namespace bad_input_averager_test {

class BadAverager : public LoneContext {
protected:
    BadAverager() { value_of_all = values; }
    void TearDown() override {
        ddp_averager_free(averager);
        LoneContext::TearDown();
    }
    // With as many sizes as there are periods, or none.
    auto create(std::vector<std::int64_t> p, std::vector<std::int32_t> s, std::int64_t warmup = 0) {
        return [this, p, s, warmup](ddp_error** e) {
            return ddp_averager_create(context, p.data(), s.empty() ? nullptr : s.data(), p.size(),
                                       warmup, &untouched, e);
        };
    }
    auto create_with(const std::int64_t* p, const std::int32_t* s, std::size_t count,
                     ddp_averager** out) {
        return [this, p, s, count, out](ddp_error** e) {
            return ddp_averager_create(context, p, s, count, 0, out, e);
        };
    }
    void make() {
        const std::int64_t period = 2;
        ASSERT_EQ(ddp_averager_create(context, &period, nullptr, 1, 0, &averager, nullptr), DDP_OK);
    }
    auto set_step(std::int64_t step) {
        return [this, step](ddp_error** e) { return ddp_averager_set_step(averager, step, e); };
    }
    auto step(std::int32_t* out) {
        return [this, out](ddp_error** e) { return ddp_averager_step(averager, out, e); };
    }
    auto outer(ddp_outer_kind kind, double learning_rate = 1, double momentum = 0, double inner = 1,
               std::uint32_t reserved = 0) {
        return [=, this](ddp_error** e) {
            ddp_outer_options options;
            ddp_outer_options_init(&options);
            options.kind = kind;
            options.reserved0 = reserved;
            options.learning_rate = learning_rate;
            options.momentum = momentum;
            options.inner_learning_rate = inner;
            return ddp_averager_set_outer(averager, &options, e);
        };
    }
    auto streaming(std::int32_t fragments, std::int64_t delay = 0, double alpha = 0,
                   ddp_dtype sent = 0) {
        return [=, this](ddp_error** e) {
            ddp_outer_options options;
            ddp_outer_options_init(&options);
            options.fragments = fragments;
            options.delay = delay;
            options.alpha = alpha;
            options.sent_dtype = sent;
            return ddp_averager_set_outer(averager, &options, e);
        };
    }
    auto fragments(std::vector<std::int32_t> of) {
        return [this, of](ddp_error** e) {
            return ddp_averager_set_fragments(averager, of.data(), of.size(), e);
        };
    }
    auto go_back() {
        return [this](ddp_error** e) { return ddp_averager_go_back(averager, e); };
    }
    auto save(void** to, std::size_t* bytes) {
        return [=, this](ddp_error** e) { return ddp_averager_state_save(averager, to, bytes, e); };
    }
    auto load(const void* from, std::size_t bytes) {
        return
            [=, this](ddp_error** e) { return ddp_averager_state_load(averager, from, bytes, e); };
    }
    auto average() {
        return [this](ddp_error** e) { return ddp_average_parameters(context, nullptr, e); };
    }

    ddp_averager* averager = nullptr;
    Untouched<ddp_averager*> untouched;
    Untouched<std::int32_t> ranks;
    Untouched<void*> data;
    float values[4] = {};
    Untouched<std::size_t> size;
    const std::int64_t periods[2] = {1, 2};
    const std::int32_t sizes[2] = {1, 1};
};

TEST_F(BadAverager, NullHandles) {
    commit();
    ddp_averager_free(nullptr);
    EXPECT_EQ(ddp_averager_get_step(nullptr), -1);
    expect_refused({
        null_argument("ddp_average_parameters", "context",
                      [](ddp_error** e) { return ddp_average_parameters(nullptr, nullptr, e); }),
        null_argument("ddp_averager_create", "context",
                      [&](ddp_error** e) {
                          return ddp_averager_create(nullptr, periods, sizes, 1, 0, &untouched, e);
                      }),
        null_argument("ddp_averager_create", "periods", create_with(nullptr, sizes, 1, &untouched)),
        null_argument("ddp_averager_create", "group_sizes",
                      create_with(periods, nullptr, 2, &untouched)),
        null_argument("ddp_averager_create", "averager", create_with(periods, sizes, 1, nullptr)),
        null_argument("ddp_averager_step", "averager",
                      [&](ddp_error** e) { return ddp_averager_step(nullptr, &ranks, e); }),
        null_argument("ddp_averager_set_step", "averager",
                      [](ddp_error** e) { return ddp_averager_set_step(nullptr, 1, e); }),
        null_argument("ddp_averager_set_outer", "averager", outer(DDP_OUTER_SGD)),
        null_argument("ddp_averager_set_fragments", "averager", fragments({0})),
        null_argument("ddp_averager_go_back", "averager", go_back()),
        null_argument("ddp_averager_state_save", "averager", save(&data, &size)),
        null_argument("ddp_averager_state_load", "averager", load("", 0)),
    });
    ddp_outer_options_init(nullptr);
    make();
    expect_refused({
        null_argument("ddp_averager_state_save", "data", save(nullptr, &size)),
        null_argument("ddp_averager_state_save", "size", save(&data, nullptr)),
        null_argument("ddp_averager_state_load", "data", load(nullptr, 0)),
        {"no state", kInvalid, {"ddp_averager_state_load", "cut short"}, load("", 0)},
    });
}

TEST_F(BadAverager, Arguments) {
    commit();
    const std::string call = "ddp_averager_create";
    constexpr auto least = std::numeric_limits<std::int64_t>::min();
    expect_refused({
        {"count 0", kInvalid, {call, "count is 0"}, create_with(periods, sizes, 0, &untouched)},
        {"count 64",
         kInvalid,
         {call, "count is 64", "63"},
         create_with(periods, sizes, 64, &untouched)},
        {"count -1",
         kInvalid,
         {call, "count is 18446744073709551615"},
         create_with(periods, sizes, SIZE_MAX, &untouched)},
        {"period 0", kInvalid, {call, "periods[0] is 0", "at least 1"}, create({0}, {})},
        {"period -1", kInvalid, {call, "periods[0] is -1"}, create({-1}, {})},
        {"period least",
         kInvalid,
         {call, "periods[0] is -9223372036854775808"},
         create({least}, {})},
        {"period 1 is 0", kInvalid, {call, "periods[1] is 0"}, create({2, 0}, {1, 1})},
        {"equal periods", kInvalid, {call, "periods[1] is 2", "larger"}, create({2, 2}, {1, 1})},
        {"shrinking",
         kInvalid,
         {call, "periods[1] is 2", "the one before, 4"},
         create({4, 2}, {1, 1})},
        {"no multiple",
         kInvalid,
         {call, "periods[2] is 9", "multiple", "6"},
         create({2, 6, 9}, {1, 1, 1})},
        {"size 0", kInvalid, {call, "group_sizes[0] is 0"}, create({1}, {0})},
        {"size -2", kInvalid, {call, "group_sizes[0] is -2"}, create({1}, {-2})},
        {"world", kInvalid, {call, "group_sizes[0] is 2", "world size, 1"}, create({1}, {2})},
        {"equal sizes", kInvalid, {call, "group_sizes[1] is 1"}, create({1, 2}, {1, 1})},
        {"no divisor", kInvalid, {call, "group_sizes[1] is 3", "2"}, create({1, 2}, {2, 3})},
        {"last size",
         kInvalid,
         {call, "group_sizes[1] is 2", "world size"},
         create({1, 2}, {1, 2})},
        {"warm-up", kInvalid, {call, "warmup_steps is -1"}, create({1}, {1}, -1)},
    });
    make();
    expect_refused({
        {"set -1", kInvalid, {"ddp_averager_set_step", "step is -1"}, set_step(-1)},
        {"set least",
         kInvalid,
         {"ddp_averager_set_step", "step is -9223372036854775808"},
         set_step(least)},
    });
    EXPECT_EQ(ddp_averager_get_step(averager), 0);
    expect_accepted(set_step(7));
    EXPECT_EQ(ddp_averager_get_step(averager), 7);
    expect_accepted(step(nullptr));
    EXPECT_EQ(ddp_averager_get_step(averager), 8);
    std::int32_t averaged = -1;
    expect_accepted(step(&averaged));
    EXPECT_EQ(averaged, 1);
    expect_accepted(average());
    expect_good_step();
}

TEST_F(BadAverager, Fragments) {
    commit();  // two parameters
    const std::int64_t period = 12;
    ASSERT_EQ(ddp_averager_create(context, &period, nullptr, 1, 0, &averager, nullptr), DDP_OK);
    const std::string call = "ddp_averager_set_outer", own = "ddp_averager_set_fragments";
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    expect_refused({
        {"no outer optimizer",
         DDP_ERROR_INVALID_STATE,
         {own, "no outer optimizer"},
         fragments({0, 0})},
        {"no outer optimizer",
         DDP_ERROR_INVALID_STATE,
         {"ddp_averager_go_back", "no outer optimizer"},
         go_back()},
        {"0", kInvalid, {call, "fragments is 0", "at least 1"}, streaming(0)},
        {"-1", kInvalid, {call, "fragments is -1"}, streaming(-1)},
        {"5", kInvalid, {call, "fragments is 5", "divide the period, 12"}, streaming(5)},
        {"3", kInvalid, {call, "fragments is 3", "2 parameters to average"}, streaming(3)},
        {"delay -1", kInvalid, {call, "delay is -1", "not be negative"}, streaming(1, -1)},
        {"delay 6",
         kInvalid,
         {call, "delay is 6", "less than period / fragments, 6"},
         streaming(2, 6)},
        {"alpha -1", kInvalid, {call, "alpha is -1"}, streaming(1, 0, -1)},
        {"alpha 1", kInvalid, {call, "alpha is 1", "less than 1"}, streaming(1, 0, 1)},
        {"alpha NaN", kInvalid, {call, "alpha is nan"}, streaming(1, 0, nan)},
        {"sent f16",
         kInvalid,
         {call, "sent_dtype is 1", "DDP_BF16, DDP_U8"},
         streaming(1, 0, 0, DDP_F16)},
    });
    expect_accepted(streaming(2, 5, 0.5, DDP_BF16));
    expect_accepted(streaming(2, 5, 0.5, DDP_U8));
    expect_accepted(go_back());
    expect_refused({
        null_argument(
            own.c_str(), "fragment_of",
            [&](ddp_error** e) { return ddp_averager_set_fragments(averager, nullptr, 2, e); }),
        {"few", kInvalid, {own, "count is 1", "2 parameters"}, fragments({0})},
        {"many", kInvalid, {own, "count is 3"}, fragments({0, 1, 0})},
        {"2", kInvalid, {own, "fragment_of[1], of '", "is 2", "2 fragments"}, fragments({0, 2})},
        {"-1", kInvalid, {own, "fragment_of[0]", "is -1"}, fragments({-1, 0})},
        {"unused", kInvalid, {own, "fragment 0 has no parameter"}, fragments({1, 1})},
    });
    expect_accepted(fragments({1, 0}));
    expect_good_step();
}

TEST_F(BadAverager, OuterOptimizers) {
    commit();
    make();
    constexpr double inf = std::numeric_limits<double>::infinity(),
                     nan = std::numeric_limits<double>::quiet_NaN();
    const std::string call = "ddp_averager_set_outer";
    expect_refused({
        {"kind -1", kInvalid, {call, "kind is -1", "DDP_OUTER_"}, outer(-1)},
        {"kind 4", kInvalid, {call, "kind is 4"}, outer(4)},
        {"reserved0", kInvalid, {call, "reserved0 is 7"}, outer(DDP_OUTER_SGD, 1, 0, 1, 7)},
        {"rate -1",
         kInvalid,
         {call, "learning_rate is -1", "not negative"},
         outer(DDP_OUTER_SGD, -1)},
        {"rate inf",
         kInvalid,
         {call, "learning_rate is inf", "finite"},
         outer(DDP_OUTER_NESTEROV, inf)},
        {"rate NaN", kInvalid, {call, "learning_rate is nan"}, outer(DDP_OUTER_SLOWMO, nan)},
        {"momentum -0.1", kInvalid, {call, "momentum is -0.1"}, outer(DDP_OUTER_SGD, 1, -0.1)},
        {"momentum 1",
         kInvalid,
         {call, "momentum is 1", "less than 1"},
         outer(DDP_OUTER_NESTEROV, 1, 1)},
        {"momentum NaN", kInvalid, {call, "momentum is nan"}, outer(DDP_OUTER_NESTEROV, 1, nan)},
        {"inner 0",
         kInvalid,
         {call, "inner_learning_rate is 0", "more than 0"},
         outer(DDP_OUTER_SLOWMO, 1, 0, 0)},
        {"inner inf",
         kInvalid,
         {call, "inner_learning_rate is inf"},
         outer(DDP_OUTER_SLOWMO, 1, 0, inf)},
        {"inner NaN",
         kInvalid,
         {call, "inner_learning_rate is nan"},
         outer(DDP_OUTER_SLOWMO, 1, 0, nan)},
    });
    ddp_outer_options good;
    ddp_outer_options_init(&good);
    check_struct_size(good, "options", [&](const ddp_outer_options* options, ddp_error** e) {
        return ddp_averager_set_outer(averager, options, e);
    });
    expect_accepted(outer(DDP_OUTER_SGD, 0, 0, nan));
    expect_accepted([&](ddp_error** e) { return ddp_averager_set_outer(averager, nullptr, e); });
    expect_accepted(step(nullptr));
    expect_accepted(outer(DDP_OUTER_NONE));
    expect_good_step();
}

// Otherwise a parameter would stay another one on each rank, and all calls would say that all is well.
TEST_F(BadAverager, AverageNeedsData) {
    add("a");
    value_of_all = nullptr;
    add("ignored", DDP_PARAM_IGNORED);
    commit({"b"});
    expect_refused({
        {"average", kState, {"ddp_average_parameters", "'b' has no data", "IGNORED"}, average()},
        {"create", kState, {"ddp_averager_create", "'b' has no data"}, create({1}, {1})},
    });
    expect_good_step({2, 0});
}

TEST_F(BadAverager, AfterItsContextWasFreed) {
    commit();
    make();
    recreate();
    expect_refused({
        {"step", kState, {"ddp_averager_step", "context", "freed"}, step(&ranks)},
        {"outer", kState, {"ddp_averager_set_outer", "context", "freed"}, outer(DDP_OUTER_SGD)},
        {"save", kState, {"ddp_averager_state_save", "context", "freed"}, save(&data, &size)},
        {"load", kState, {"ddp_averager_state_load", "context", "freed"}, load("", 0)},
    });
    EXPECT_EQ(ddp_averager_get_step(averager), 0);
}

TEST_F(BadAverager, BeforeCommit) {
    add("a");
    expect_refused({
        {"average", kState, {"ddp_average_parameters", "ddp_commit"}, average()},
        {"create", kState, {"ddp_averager_create", "ddp_commit"}, create({1}, {1})},
    });
}

TEST_F(BadAverager, InTheMiddleOfAStep) {
    commit();
    make();
    expect_accepted(calling(ddp_grad_ready, context, 1));
    expect_refused({
        {"average", kState, {"ddp_average_parameters", "step 0"}, average()},
        {"create", kState, {"ddp_averager_create", "step 0"}, create({1}, {1})},
        {"step", kState, {"ddp_averager_step", "step 0"}, step(&ranks)},
        {"outer", kState, {"ddp_averager_set_outer", "step 0"}, outer(DDP_OUTER_SGD)},
        {"save", kState, {"ddp_averager_state_save", "step 0"}, save(&data, &size)},
        {"load", kState, {"ddp_averager_state_load", "step 0"}, load("", 0)},
    });
    EXPECT_EQ(ddp_averager_get_step(averager), 0) << "a refused step does not count";
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_accepted(calling(ddp_finalize, context));
    expect_good_step();
}

TEST_F(BadAverager, OnABrokenGroup) {
    commit();
    make();
    ASSERT_EQ(ddp_group_abort(group, "enough", nullptr), DDP_OK);
    expect_refused({
        {"average", DDP_ERROR_ABORTED, {"enough"}, average()},
        {"step", DDP_ERROR_ABORTED, {"enough"}, step(&ranks)},
    });
}

}  // namespace bad_input_averager_test
