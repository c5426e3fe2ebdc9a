// The common behaviour of all hooks that compress gradients element by element.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <limits>

#include "hooks/any_model.h"
#include "support/ranks.h"

namespace gather_test {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Named {
    const char* name;
    const char* options;
};
std::ostream& operator<<(std::ostream& out, const Named& hook) {
    return out << hook.name << " " << hook.options;
}

// Small parameters are not compressed: all dtypes, more than one chunk of the unpacking, 1 element
// and none.
const std::vector<AnyParam> kParams{
    {DDP_F32, 5000}, {DDP_F16, 300}, {DDP_I64, 40},   {DDP_F64, 2500}, {DDP_F32, 33},
    {DDP_BF16, 777}, {DDP_F32, 0},   {DDP_C128, 50},  {DDP_F32, 1},    {DDP_U8, 200},
    {DDP_F32, 200},  {DDP_F64, 12},  {DDP_F16, 5000}, {DDP_C64, 99}};

bool compressed(const AnyParam& p) {
    return p.count >= 100 && libddp::is_floating(p.dtype) && !libddp::is_complex(p.dtype);
}

ddp_context_options buckets_of(std::uint64_t bytes) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = bytes;
    return options;
}

class Gather : public testing::TestWithParam<Named> {
protected:
    static void use(AnyModel& m) {
        m.context.use_hook(GetParam().name, GetParam().options);
        m.context.commit();
    }
    static void step(AnyModel& m, int rank, int number, bool forwards = false) {
        m.step([&](int i) { return some_numbers(m.param(i), rank, number, i); }, forwards);
    }
};
INSTANTIATE_TEST_SUITE_P(Hooks, Gather,
                         testing::Values(Named{"quantize_per_tensor", "min_elements=100"},
                                         Named{"quantize_per_channel", "min_elements=100,block=60"},
                                         Named{"onebit", "min_elements=100"},
                                         Named{"topk", "min_elements=100,ratio=0.05"},
                                         Named{"fp16(onebit)", "min_elements=100"},
                                         Named{"quantize", "min_elements=100,block=32"},
                                         Named{"quantize",
                                               "min_elements=100,error_feedback=1,type=e4m3"}));

TEST_P(Gather, RanksAgreeAndSmallParametersAreReducedAsWithoutAHook) {
    const bool cast = std::string(GetParam().name).starts_with("fp16");
    for (const bool view : {true, false})
        for (int world = 1; world <= 4; ++world)
            for (const bool mean : {true, false}) {
                std::vector<Bytes> results(static_cast<std::size_t>(world));
                on_ranks({world}, [&](int rank, ddp_group* group) {
                    auto options = buckets_of(9000);
                    options.reduction = mean ? DDP_REDUCTION_MEAN : DDP_REDUCTION_SUM;
                    AnyModel plain(group, kParams, view, options),
                        hooked(group, kParams, view, options);
                    plain.context.commit();
                    use(hooked);
                    for (int s = 0; s < 3; ++s) {
                        step(plain, rank, s);
                        step(hooked, rank, s);
                        for (int i = 0; i < plain.count(); ++i) {
                            const bool wide =
                                plain.param(i).dtype == DDP_F32 || plain.param(i).dtype == DDP_F64;
                            if (compressed(plain.param(i)) || (cast && wide)) continue;
                            EXPECT_TRUE(plain.bytes(i) == hooked.bytes(i)) << "parameter " << i;
                        }
                        const Bytes all = hooked.bytes();
                        auto& mine = results[static_cast<std::size_t>(rank)];
                        mine.insert(mine.end(), all.begin(), all.end());
                    }
                });
                for (const auto& other : results)
                    EXPECT_TRUE(other == results[0]) << "ranks differ";
            }
}

// The same gradients in one bucket, in many, and in others from step to step.
TEST_P(Gather, BucketsMakeNoDifference) {
    // The owner of a share keeps a part of the error, and depends on the buckets.
    if (std::string(GetParam().options).find("error_feedback=1") != std::string::npos) return;
    on_ranks({3, "tcp"}, [](int rank, ddp_group* group) {
        auto fixed = buckets_of(1u << 20);
        fixed.flags |= DDP_CONTEXT_NO_REBUILD;
        AnyModel one(group, kParams, true, fixed), many(group, kParams, false, buckets_of(1000)),
            moving(group, kParams, true, buckets_of(9000));
        for (AnyModel* m : {&one, &many, &moving}) use(*m);
        for (int s = 0; s < 6; ++s) {
            moving.context.request_rebuild();
            step(one, rank, s);
            step(many, rank, s);
            step(moving, rank, s, s % 2 == 1);
            EXPECT_TRUE(one.bytes() == many.bytes()) << "step " << s;
            EXPECT_TRUE(one.bytes() == moving.bytes()) << "step " << s;
        }
        EXPECT_GT(moving.context.layout_generation(), 3) << "nothing has moved";
    });
}

// One element on one rank spoils the whole parameter on all, and nothing else. Its state stays as
// it was: from then on it goes on as in a model that did not have this step.
TEST_P(Gather, NotFiniteIsNaNEverywhereAndChangesNoMemory) {
    for (const double value :
         {kNaN, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()})
        on_ranks({3}, [value](int rank, ddp_group* group) {
            AnyModel spoilt(group, kParams, true), whole(group, kParams, true);
            use(spoilt);
            use(whole);
            for (int s = 0; s < 2; ++s) {
                step(spoilt, rank, s);
                step(whole, rank, s);
            }
            const auto bad = [&](int i) {
                return compressed(kParams[static_cast<std::size_t>(i)]) && i % 2 == 0;
            };
            spoilt.step([&](int i) {
                Numbers x = some_numbers(spoilt.param(i), rank, 2, i);
                if (bad(i) && rank == 1) x[x.size() / 2] = value;
                return x;
            });
            for (int i = 0; i < spoilt.count(); ++i)
                for (const double x : spoilt.numbers(i))
                    EXPECT_EQ(std::isnan(x), bad(i)) << "parameter " << i;
            AnyModel without(group, kParams, true);
            use(without);
            for (int s = 0; s < 2; ++s) step(without, rank, s);
            step(whole, rank, 2);
            for (int s = 3; s < 5; ++s) {
                step(spoilt, rank, s);
                step(whole, rank, s);
                step(without, rank, s);
                for (int i = 0; i < spoilt.count(); ++i)
                    EXPECT_TRUE(spoilt.bytes(i) == (bad(i) ? without : whole).bytes(i))
                        << "step " << s << " parameter " << i;
            }
        });
}

TEST_P(Gather, StateOfAllDtypesResumes) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        AnyModel through(group, kParams, true, buckets_of(9000));
        use(through);
        for (int s = 0; s < 3; ++s) step(through, rank, s);
        const auto file = through.context.save_hook_state();
        AnyModel resumed(group, kParams, false, buckets_of(9000)), fresh(group, kParams, true),
            shared(group, kParams, true);
        for (AnyModel* m : {&resumed, &fresh, &shared}) use(*m);
        // Loading forgets the state from before.
        step(resumed, rank, 9);
        step(shared, rank, 9);
        resumed.context.load_hook_state(file);
        shared.context.load_hook_state(file, DDP_HOOK_STATE_SHARED_ONLY);
        for (int s = 3; s < 6; ++s) {
            for (AnyModel* m : {&through, &resumed, &fresh, &shared}) step(*m, rank, s);
            EXPECT_TRUE(through.bytes() == resumed.bytes()) << "step " << s;
            EXPECT_TRUE(fresh.bytes() == shared.bytes()) << "step " << s;
        }
    });
}

// A hook that is wrapped in the middle of training keeps what it has.
TEST_P(Gather, WrappingKeepsTheMemory) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        AnyModel m(group, kParams, true);
        use(m);
        for (int s = 0; s < 3; ++s) step(m, rank, s);
        if (m.context.hook_name().starts_with("fp16")) return;
        AnyModel other(group, kParams, true);
        use(other);
        for (int s = 0; s < 3; ++s) step(other, rank, s);
        m.context.compress_hook(DDP_BF16);
        EXPECT_EQ(m.context.hook_name(), std::string("bf16(") + GetParam().name + ")");
        step(m, rank, 3);
        step(other, rank, 3);
        for (int i = 0; i < m.count(); ++i) {
            const Numbers cast = m.numbers(i), exact = other.numbers(i);
            double difference = 0, size = 0;
            for (std::size_t k = 0; k < cast.size(); ++k) {
                difference += std::fabs(cast[k] - exact[k]);
                size += std::fabs(exact[k]);
            }
            EXPECT_LE(difference, 0.1 * size) << "parameter " << i;
        }
    });
}

// Ranks whose threads round differently come to the same bits.
TEST_P(Gather, RoundingModesOfThreadsDoNotMatter) {
    std::vector<Bytes> results(2);
    on_ranks({2}, [&](int rank, ddp_group* group) {
        AnyModel m(group, kParams, true);
        use(m);
        std::fesetround(rank == 0 ? FE_DOWNWARD : FE_UPWARD);
        for (int s = 0; s < 3; ++s) step(m, rank, s);
        EXPECT_EQ(std::fegetround(), rank == 0 ? FE_DOWNWARD : FE_UPWARD) << "left as it was";
        std::fesetround(FE_TONEAREST);
        for (int i = 0; i < m.count(); ++i) {
            if (!compressed(m.param(i))) continue;
            const Bytes one = m.bytes(i);
            auto& mine = results[static_cast<std::size_t>(rank)];
            mine.insert(mine.end(), one.begin(), one.end());
        }
    });
    EXPECT_TRUE(results[0] == results[1]);
}

}  // namespace gather_test
