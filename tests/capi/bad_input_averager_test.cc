// averager.h with arguments that make no sense, and with calls that come at the wrong time.
#include <limits>

#include "capi/lone_context.h"

namespace bad_input_averager_test {

class BadAverager : public LoneContext {
protected:
    void TearDown() override {
        ddp_averager_free(averager);
        LoneContext::TearDown();
    }
    // With as many sizes as there are periods, or none.
    auto create(std::vector<std::int64_t> p, std::vector<std::int32_t> s, std::int64_t warmup = 0) {
        return [this, p, s, warmup](ddp_error** e) {
            return ddp_averager_create(context, p.data(), s.empty() ? nullptr : s.data(), p.size(), warmup, &untouched,
                                       e);
        };
    }
    auto create_with(const std::int64_t* p, const std::int32_t* s, std::size_t count, ddp_averager** out) {
        return [this, p, s, count, out](ddp_error** e) { return ddp_averager_create(context, p, s, count, 0, out, e); };
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
    auto average() {
        return [this](ddp_error** e) { return ddp_average_parameters(context, nullptr, e); };
    }

    ddp_averager* averager = nullptr;
    Untouched<ddp_averager*> untouched;
    Untouched<std::int32_t> ranks;
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
                      [&](ddp_error** e) { return ddp_averager_create(nullptr, periods, sizes, 1, 0, &untouched, e); }),
        null_argument("ddp_averager_create", "periods", create_with(nullptr, sizes, 1, &untouched)),
        null_argument("ddp_averager_create", "group_sizes", create_with(periods, nullptr, 2, &untouched)),
        null_argument("ddp_averager_create", "averager", create_with(periods, sizes, 1, nullptr)),
        null_argument("ddp_averager_step", "averager",
                      [&](ddp_error** e) { return ddp_averager_step(nullptr, &ranks, e); }),
        null_argument("ddp_averager_set_step", "averager",
                      [](ddp_error** e) { return ddp_averager_set_step(nullptr, 1, e); }),
    });
}

TEST_F(BadAverager, Arguments) {
    commit();
    const std::string call = "ddp_averager_create";
    constexpr auto least = std::numeric_limits<std::int64_t>::min();
    expect_refused({
        {"count 0", kInvalid, {call, "count is 0"}, create_with(periods, sizes, 0, &untouched)},
        {"count 64", kInvalid, {call, "count is 64", "63"}, create_with(periods, sizes, 64, &untouched)},
        {"count -1",
         kInvalid,
         {call, "count is 18446744073709551615"},
         create_with(periods, sizes, SIZE_MAX, &untouched)},
        {"period 0", kInvalid, {call, "periods[0] is 0", "at least 1"}, create({0}, {})},
        {"period -1", kInvalid, {call, "periods[0] is -1"}, create({-1}, {})},
        {"period least", kInvalid, {call, "periods[0] is -9223372036854775808"}, create({least}, {})},
        {"period 1 is 0", kInvalid, {call, "periods[1] is 0"}, create({2, 0}, {1, 1})},
        {"equal periods", kInvalid, {call, "periods[1] is 2", "larger"}, create({2, 2}, {1, 1})},
        {"shrinking", kInvalid, {call, "periods[1] is 2", "the one before, 4"}, create({4, 2}, {1, 1})},
        {"no multiple", kInvalid, {call, "periods[2] is 9", "multiple", "6"}, create({2, 6, 9}, {1, 1, 1})},
        {"size 0", kInvalid, {call, "group_sizes[0] is 0"}, create({1}, {0})},
        {"size -2", kInvalid, {call, "group_sizes[0] is -2"}, create({1}, {-2})},
        {"world", kInvalid, {call, "group_sizes[0] is 2", "world size, 1"}, create({1}, {2})},
        {"equal sizes", kInvalid, {call, "group_sizes[1] is 1"}, create({1, 2}, {1, 1})},
        {"no divisor", kInvalid, {call, "group_sizes[1] is 3", "2"}, create({1, 2}, {2, 3})},
        {"last size", kInvalid, {call, "group_sizes[1] is 2", "world size"}, create({1, 2}, {1, 2})},
        {"warm-up", kInvalid, {call, "warmup_steps is -1"}, create({1}, {1}, -1)},
    });
    make();
    expect_refused({
        {"set -1", kInvalid, {"ddp_averager_set_step", "step is -1"}, set_step(-1)},
        {"set least", kInvalid, {"ddp_averager_set_step", "step is -9223372036854775808"}, set_step(least)},
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

TEST_F(BadAverager, AfterItsContextWasFreed) {
    commit();
    make();
    recreate();
    expect_refused({{"step", kState, {"ddp_averager_step", "context", "freed"}, step(&ranks)}});
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
