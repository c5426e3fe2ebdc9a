// States that hooks of compressed gradients refuse to load, and that they are then as they were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "hooks/builtin.h"
#include "hooks/state.h"
#include "util/error.h"

using libddp::HookState;
using testing::HasSubstr;

namespace {

const std::vector<float> kError{1, -2, 3};

HookState::Array error_of(std::int32_t param) {
    return {param,
            "error",
            DDP_F32,
            {3},
            false,
            reinterpret_cast<const std::byte*>(kError.data()),
            sizeof(float) * 3};
}

void expect_refused(libddp::Hook& hook, const HookState& state, const char* text) {
    try {
        hook.load(state);
        ADD_FAILURE() << "loaded: " << text;
    } catch (const libddp::Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(error.info().message, HasSubstr(text));
        EXPECT_THAT(error.info().message, HasSubstr(hook.name()));
    }
}

// The state, by parameter.
std::map<std::int32_t, std::vector<float>> kept(const libddp::Hook& hook) {
    HookState state;
    hook.save(state);
    std::map<std::int32_t, std::vector<float>> all;
    for (const auto& array : state.arrays) {
        EXPECT_EQ(array.key, "error");
        EXPECT_EQ(array.dtype, DDP_F32);
        EXPECT_FALSE(array.shared);
        EXPECT_EQ(array.shape.front() * 4, static_cast<std::int64_t>(array.bytes));
        const auto* values = reinterpret_cast<const float*>(array.data);
        all[array.param].assign(values, values + array.shape.front());
    }
    return all;
}

TEST(GatherState, LoadsAllOrNothing) {
    for (const char* name : {"onebit", "topk"}) {
        const auto hook = libddp::make_hook(name, "", nullptr);
        EXPECT_TRUE(kept(*hook).empty());
        HookState good, bad;
        good.arrays = {error_of(2), error_of(7)};
        hook->load(good);
        EXPECT_EQ(kept(*hook),
                  (std::map<std::int32_t, std::vector<float>>{{2, kError}, {7, kError}}));

        bad.arrays = {error_of(4), error_of(5)};
        bad.arrays.back().key = "q";
        expect_refused(*hook, bad, "'q'");
        bad.arrays.back() = error_of(-1);
        expect_refused(*hook, bad, "'error'");
        bad.arrays.back() = error_of(5);
        bad.arrays.back().dtype = DDP_I32;
        expect_refused(*hook, bad, "parameter 5 has shape");
        bad.arrays.back() = error_of(5);
        bad.arrays.back().shape = {3, 1};
        expect_refused(*hook, bad, "parameter 5 has shape");
        EXPECT_EQ(kept(*hook),
                  (std::map<std::int32_t, std::vector<float>>{{2, kError}, {7, kError}}));

        // Arrays that a state does not have start at zero.
        good.arrays.pop_back();
        hook->load(good);
        EXPECT_EQ(kept(*hook), (std::map<std::int32_t, std::vector<float>>{{2, kError}}));
    }
}

TEST(GatherState, RatiosThatDifferHaveOtherOptions) {
    const auto options = [](const char* text) {
        return libddp::make_hook("topk", text, nullptr)->options();
    };
    EXPECT_NE(options("ratio=0.1000001"), options("ratio=0.1")) << "ranks compare them";
    EXPECT_EQ(options("ratio=0.01"), options("")) << "the default";
}

TEST(GatherState, SumsInEightBitsNeedTheirSteps) {
    const auto plain = libddp::make_hook("quantize", "", nullptr);
    const auto feeds = libddp::make_hook("quantize", "error_feedback=1", nullptr);
    HookState state;
    plain->save(state);
    EXPECT_EQ(state.numbers.at("steps"), 0);
    EXPECT_TRUE(state.arrays.empty());
    state.numbers["steps"] = 12;
    plain->load(state);
    EXPECT_EQ(plain->steps(), 12);
    state.arrays = {error_of(2)};
    expect_refused(*plain, state, "'error'");
    feeds->load(state);
    EXPECT_EQ(kept(*feeds), (std::map<std::int32_t, std::vector<float>>{{2, kError}}));
    state.numbers["steps"] = -1;
    expect_refused(*plain, state, "after how many steps");
    state.numbers.clear();
    expect_refused(*feeds, state, "after how many steps");
}

TEST(GatherState, ChunksKeepAVelocityWithMomentum) {
    const auto plain = libddp::make_hook("chunks", "", nullptr);
    const auto pushed = libddp::make_hook("chunks", "momentum=0.9", nullptr);
    HookState state;
    state.arrays = {error_of(2), error_of(2)};
    state.arrays.back().key = "velocity";
    expect_refused(*pushed, state, "after how many steps");
    state.numbers["steps"] = 7;
    expect_refused(*plain, state, "'velocity', which this hook does not keep without momentum");
    state.arrays.back().shape = {3, 1};
    expect_refused(*pushed, state, "'velocity' of parameter 2 has shape");
    HookState kept;
    pushed->save(kept);
    EXPECT_TRUE(kept.arrays.empty());
    EXPECT_EQ(pushed->steps(), 0);
    state.arrays.back().shape = {3};
    pushed->load(state);
    EXPECT_EQ(pushed->steps(), 7);
    pushed->save(kept);
    ASSERT_EQ(kept.arrays.size(), 2u);
    EXPECT_EQ(kept.arrays.back().key, std::string("velocity"));
    state.arrays.back().key = "q";
    expect_refused(*pushed, state, "'q', which this hook does not keep");
}

TEST(GatherState, QuantizationKeepsNothing) {
    const auto hook = libddp::make_hook("quantize_per_tensor", "", nullptr);
    HookState state;
    hook->save(state);
    EXPECT_TRUE(state.arrays.empty());
    hook->load(state);
    state.arrays = {error_of(0)};
    expect_refused(*hook, state, "'error'");
}

}  // namespace
