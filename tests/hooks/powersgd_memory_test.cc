// The state of PowerSGD from step to step: gradients that are not finite, and its state as a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hooks/matrix_model.h"
#include "hooks/state_file.h"

using testing::HasSubstr;

namespace powersgd_memory_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();
const std::vector<Shape> kShapes{{20, 30}, {12}, {6, 4, 3, 3}, {16, 16}};
// Shapes 0, 2 and 3 of kShapes are compressed to rank 2.
constexpr const char* kOptions = "rank=2,start=0,min_rate=0.5";

ddp_context_options buckets_of(std::uint64_t bytes) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = bytes;
    return options;
}

struct Way {
    const char* hook;
    const char* options;
    ddp_dtype dtype;
};

class PowerSgdMemory : public testing::TestWithParam<Way> {
protected:
    MatrixModel model(ddp_group* group, std::uint64_t bucket_bytes = 1 << 20, bool view = true) {
        return {group, kShapes, GetParam().dtype, view, buckets_of(bucket_bytes)};
    }
    static void install(MatrixModel& m) {
        m.context.use_hook(GetParam().hook, GetParam().options);
        m.context.commit();
    }
    static Numbers gradient(const MatrixModel& m, int rank, int step, int param) {
        return some_numbers(m.param(param), rank, step, param);
    }
    static bool batched() { return std::string(GetParam().hook).starts_with("batched"); }
};
INSTANTIATE_TEST_SUITE_P(
    Hooks, PowerSgdMemory,
    testing::Values(Way{"powersgd", kOptions, DDP_F32}, Way{"powersgd", kOptions, DDP_F64},
                    Way{"powersgd", kOptions, DDP_BF16},
                    Way{"powersgd", "rank=3,start=0,min_rate=0.5", DDP_F32},
                    Way{"powersgd", "rank=2,start=0,min_rate=0.5,warm_start=0", DDP_F32},
                    Way{"powersgd", "rank=2,start=0,min_rate=0.5,error_feedback=0", DDP_F16},
                    Way{"batched_powersgd", kOptions, DDP_F32},
                    Way{"batched_powersgd", kOptions, DDP_F16},
                    Way{"batched_powersgd", "rank=4,start=1,min_rate=0.5,error_feedback=0",
                        DDP_F64}));

bool all_nan(const Numbers& values) {
    for (const double x : values)
        if (!std::isnan(x)) return false;
    return true;
}
bool all_finite(const Numbers& values) {
    for (const double x : values)
        if (!std::isfinite(x)) return false;
    return true;
}

// One element on one rank makes its parameter NaN everywhere; the others come through, and what is
// kept for it stays.
TEST_P(PowerSgdMemory, OneBadElementMakesItsParameterNanOnEveryRank) {
    for (const double bad : {kNan, kInfinity, -kInfinity})
        on_ranks({2}, [&](int rank, ddp_group* group) {
            MatrixModel m = model(group);
            install(m);
            for (int s = 0; s < 2; ++s) m.step([&](int i) { return gradient(m, rank, s, i); });
            m.step([&](int i) {
                Numbers values = gradient(m, rank, 2, i);
                if (i == 2 && rank == 1) values[100] = bad;
                return values;
            });
            EXPECT_TRUE(all_nan(m.numbers(2)));
            for (const int i : {0, 1, 3})
                EXPECT_TRUE(all_finite(m.numbers(i))) << "parameter " << i;
            for (int s = 3; s < 6; ++s) m.step([&](int i) { return gradient(m, rank, s, i); });
            for (const int i : {0, 1, 2, 3})
                EXPECT_TRUE(all_finite(m.numbers(i))) << "parameter " << i;
        });
}

TEST_P(PowerSgdMemory, WhatIsKeptOfABadParameterStaysAsItWas) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel m = model(group);
        install(m);
        for (int s = 0; s < 3; ++s) m.step([&](int i) { return gradient(m, rank, s, i); });
        const StateFile before = m.context.save_hook_state();
        m.step([&](int i) {
            Numbers values = gradient(m, rank, 3, i);
            if (i != 3 && rank == 0) values[static_cast<std::size_t>(i)] = kNan;
            return values;
        });
        const StateFile after = m.context.save_hook_state();
        for (const char* same : {"error:p0", "q:p0", "error:p2", "q:p2"})
            EXPECT_EQ(array_of(after, same), array_of(before, same)) << same;
        for (const char* other : {"error:p3", "q:p3"})
            EXPECT_TRUE(array_of(before, other).empty() ||
                        array_of(after, other) != array_of(before, other))
                << other;
        m.step([&](int i) { return gradient(m, rank, 4, i); });
        for (const int i : {0, 2, 3}) EXPECT_TRUE(all_finite(m.numbers(i)));
    });
}

TEST(PowerSgdState, StepsAfterOneWithoutAFiniteGradientAreAsIfItHadNotBeen) {
    Seen seen;
    for (const char* options : {kOptions, "rank=3,start=0,min_rate=0.5"})
        for (const int bad_steps : {0, 1})
            on_ranks({2}, [&](int rank, ddp_group* group) {
                MatrixModel m(group, kShapes);
                m.context.use_hook("powersgd", options);
                m.context.commit();
                m.step([&](int i) { return some_numbers(m.param(i), rank, 0, i); });
                for (int s = 0; s < bad_steps; ++s)
                    m.step(
                        [&](int i) { return Numbers(static_cast<std::size_t>(m.size(i)), kNan); });
                for (int s = 1; s < 4; ++s) {
                    m.step([&](int i) { return some_numbers(m.param(i), rank, s, i); });
                    if (rank == 0) seen.add(bad_steps, m.bytes());
                }
            });
    EXPECT_TRUE(seen.same(2));
}

TEST_P(PowerSgdMemory, ResumingEqualsNeverHavingStopped) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel through = model(group);
        install(through);
        for (int s = 0; s < 4; ++s)
            through.step([&](int i) { return gradient(through, rank, s, i); });
        const StateFile file = through.context.save_hook_state();
        // A hook of whole buckets needs the same buckets.
        MatrixModel resumed = model(group, batched() ? 1 << 20 : 64, false);
        install(resumed);
        resumed.context.load_hook_state(file);
        EXPECT_EQ(resumed.context.save_hook_state(), file);
        for (int s = 4; s < 8; ++s) {
            for (auto* m : {&through, &resumed})
                m->step([&](int i) { return gradient(through, rank, s, i); });
            EXPECT_EQ(through.bytes(), resumed.bytes()) << "step " << s;
        }
        EXPECT_EQ(resumed.context.save_hook_state(), through.context.save_hook_state());
    });
}

TEST_P(PowerSgdMemory, GoesOnInAnotherWorld) {
    std::vector<StateFile> files(2);
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel m = model(group);
        install(m);
        for (int s = 0; s < 4; ++s) m.step([&](int i) { return gradient(m, rank, s, i); });
        files[static_cast<std::size_t>(rank)] = m.context.save_hook_state();
    });
    Seen seen;
    on_ranks({3}, [&](int rank, ddp_group* group) {
        MatrixModel m = model(group);
        install(m);
        EXPECT_THROW(m.context.load_hook_state(files[0]), ddp::Error);
        m.context.load_hook_state(files[static_cast<std::size_t>(rank) % 2],
                                  DDP_HOOK_STATE_SHARED_ONLY);
        for (int s = 4; s < 8; ++s) m.step([&](int i) { return gradient(m, rank, s, i); });
        seen.add(rank, m.bytes());
    });
    EXPECT_TRUE(seen.same(3));
}

TEST(PowerSgdState, AFileThatDoesNotFitIsRefusedAndChangesNothing) {
    on_ranks({1}, [&](int, ddp_group* group) {
        const auto make = [&](const char* hook, const char* options, std::vector<Shape> shapes) {
            auto m = std::make_unique<MatrixModel>(group, std::move(shapes));
            m->context.use_hook(hook, options);
            m->context.commit();
            m->step([&](int i) { return some_numbers(m->param(i), 0, 0, i); });
            return m;
        };
        const auto m = make("powersgd", kOptions, kShapes);
        const StateFile mine = m->context.save_hook_state();
        const auto refused = [&](const StateFile& file, const char* why) {
            try {
                m->context.load_hook_state(file);
                ADD_FAILURE() << "loaded, although: " << why;
            } catch (const ddp::Error& e) {
                EXPECT_EQ(e.status(), DDP_ERROR_INVALID_ARGUMENT);
                EXPECT_THAT(e.what(), HasSubstr(why));
            }
            EXPECT_EQ(m->context.save_hook_state(), mine);
        };
        refused(make("powersgd", "rank=3,start=0,min_rate=0.5", kShapes)->context.save_hook_state(),
                "rank 3");
        refused(make("batched_powersgd", kOptions, kShapes)->context.save_hook_state(),
                "batched_powersgd");
        refused(make("powersgd", kOptions, {{20, 31}})->context.save_hook_state(), "[20, 31]");
        refused(make("allreduce", "", kShapes)->context.save_hook_state(), "allreduce");
    });
}

}  // namespace powersgd_memory_test
