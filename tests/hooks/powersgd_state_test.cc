// The state of PowerSGD, and the states that it is given.
#include "hooks/powersgd_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "util/error.h"

using testing::HasSubstr;

namespace libddp::powersgd {
namespace {

// A state with one parameter of 6 x 4, of rank 2.
class PowerSgdLoad : public testing::Test {
protected:
    PowerSgdLoad() {
        good.numbers = {{"steps", 5}, {"rank", 2}};
        good.arrays.push_back({0, "error", DDP_F32, {24}, false, bytes(), 96});
        good.arrays.push_back({0, "q", DDP_F32, {2, 4}, true, bytes(), 32});
        state.load(good);
    }
    const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(numbers); }
    void expect_refused(const char* why, const std::function<void(HookState&)>& change) {
        HookState bad = good;
        change(bad);
        HookState before, after;
        state.save(before);
        try {
            state.load(bad);
            ADD_FAILURE() << "loaded, although: " << why;
        } catch (const Error& e) {
            EXPECT_EQ(e.info().code, DDP_ERROR_INVALID_ARGUMENT);
            EXPECT_THAT(e.what(), HasSubstr(why));
        }
        state.save(after);
        EXPECT_EQ(after.numbers, before.numbers);
        ASSERT_EQ(after.arrays.size(), before.arrays.size());
        for (std::size_t i = 0; i < after.arrays.size(); ++i)
            EXPECT_EQ(after.arrays[i].data, before.arrays[i].data) << "nothing was loaded";
    }

    const float numbers[64] = {1, 2, 3};
    HookState good;
    State state{2, false, "powersgd"};
};

TEST_F(PowerSgdLoad, GivesBackWhatWasSaved) {
    HookState saved;
    state.save(saved);
    EXPECT_EQ(saved.numbers, good.numbers);
    ASSERT_EQ(saved.arrays.size(), 2u);
    for (const auto& array : good.arrays) {
        const auto found = std::find_if(saved.arrays.begin(), saved.arrays.end(),
                                        [&](const auto& other) { return other.key == array.key; });
        ASSERT_NE(found, saved.arrays.end());
        EXPECT_EQ(found->shape, array.shape);
        EXPECT_EQ(found->shared, array.key == "q");
        EXPECT_EQ(std::memcmp(found->data, array.data, array.bytes), 0);
    }
    state.note_step(0);
    EXPECT_EQ(state.step(), 5) << "a resumed context numbers its steps from 0";
}

TEST_F(PowerSgdLoad, RefusesWhatDoesNotFit) {
    expect_refused("'steps'", [](HookState& s) { s.numbers.erase("steps"); });
    expect_refused("'steps'", [](HookState& s) { s.numbers["steps"] = -1; });
    expect_refused("'steps'", [](HookState& s) {
        s.numbers["steps"] = std::numeric_limits<std::int64_t>::max();
    });
    expect_refused("rank 3", [](HookState& s) { s.numbers["rank"] = 3; });
    expect_refused("'residual'", [](HookState& s) { s.arrays[0].key = "residual"; });
    expect_refused("'q0'", [](HookState& s) { s.arrays[1].key = "q0", s.arrays[1].param = -1; });
    expect_refused("of f16", [](HookState& s) { s.arrays[0].dtype = DDP_F16; });
    expect_refused("6 x 4", [](HookState& s) { s.arrays[0].shape = {6, 4}; });
    expect_refused("25 elements",
                   [](HookState& s) { s.arrays[0].shape = {25}, s.arrays[0].bytes = 100; });
    expect_refused("3 x 4", [](HookState& s) {
        s.arrays[1].shape = {3, 4}, s.arrays[1].bytes = 48;
    });
    expect_refused("1 x 4", [](HookState& s) {
        s.arrays[1].shape = {1, 4}, s.arrays[1].bytes = 16;
    });
    expect_refused("2 x 6", [](HookState& s) {
        s.arrays[1].shape = {2, 6}, s.arrays[1].bytes = 48;
    });
    expect_refused("2 x 1", [](HookState& s) {
        s.arrays[1].shape = {2, 1}, s.arrays[1].bytes = 8;
    });
}

TEST_F(PowerSgdLoad, ChecksAQAgainstItsErrorInAHookThatIsNew) {
    State fresh{2, false, "powersgd"};
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{2, 5}, {1, 4}}) {
        HookState bad = good;
        bad.arrays[1].shape = shape;
        bad.arrays[1].bytes = static_cast<std::size_t>(shape[0] * shape[1]) * 4;
        EXPECT_THROW(fresh.load(bad), Error);
    }
    HookState shared = good;
    shared.arrays.erase(shared.arrays.begin());
    fresh.load(shared);
    Site on_cpu;
    EXPECT_EQ(fresh.error(0, 24, on_cpu).count(), 24u) << "a missing error is zero";
    EXPECT_THROW(fresh.error(0, 25, on_cpu), Error);
    EXPECT_EQ(fresh.q(0).columns, 2u);
}

TEST(PowerSgdLoadBatched, KnowsBucketsByNumber) {
    const float numbers[64] = {};
    const auto* data = reinterpret_cast<const std::byte*>(numbers);
    State state{3, true, "batched_powersgd"};
    HookState saved;
    saved.numbers = {{"steps", 5}, {"rank", 3}};
    saved.arrays.push_back({-1, "q12", DDP_F32, {3, 6}, true, data, 72});
    state.load(saved);
    EXPECT_EQ(state.q(12).rows, 6u);
    for (const char* key : {"q", "qx", "q-1", "q99999999999"}) {
        saved.arrays[0].key = key;
        EXPECT_THROW(state.load(saved), Error) << key;
    }
}

}  // namespace
}  // namespace libddp::powersgd
