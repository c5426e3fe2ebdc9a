// PowerSGD, one matrix for each parameter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <limits>

#include "hooks/matrix_model.h"

using testing::HasSubstr;

namespace powersgd_test {

// Two matrices, a convolution's weight of 6 x 36, and what is never compressed.
const std::vector<Shape> kShapes{{20, 30}, {12}, {6, 4, 3, 3}, {}, {7, 5}, {64, 3}};
const std::vector<int> kMatrices{0, 2, 4};
const std::vector<int> kVectors{1, 3};

// kShapes of which 0, 2 and 4 are compressed to rank 2, and the last too.
constexpr const char* kOptions = "rank=2,start=0,min_rate=0.5";

// One step after which the parameter's mean must be this near to the true one.
void expect_near_mean(MatrixModel& m, int world, int rank, int step, int param, double tolerance,
                      bool mean = true) {
    m.step([&](int i) { return gradient(m, rank, step, i); });
    const Numbers truth = total_of(world, mean, [&](int r) { return gradient(m, r, step, param); });
    EXPECT_LE(distance(m.numbers(param), truth), tolerance)
        << "parameter " << param << ", step " << step;
}

// The bytes of some steps' results under a hook, which must be the same on every rank.
Bytes run(const std::string& hook, const std::string& options, int steps, int world = 2,
          const std::function<void(MatrixModel&, int rank, int step)>& before_step = {},
          std::uint64_t bucket_bytes = 1 << 20, ddp_dtype dtype = DDP_F32, bool view = true) {
    Seen seen;
    on_ranks({world}, [&](int rank, ddp_group* group) {
        MatrixModel m(group, kShapes, dtype, view, buckets_of(bucket_bytes));
        m.context.use_hook(hook, options);
        m.context.commit();
        for (int s = 0; s < steps; ++s) {
            if (before_step) before_step(m, rank, s);
            m.step([&](int i) { return gradient(m, rank, s, i); });
            seen.add(rank, m.bytes());
        }
    });
    EXPECT_TRUE(seen.same(world)) << hook << " " << options;
    return seen.of(0);
}

struct Precision {
    ddp_dtype dtype;
    double tolerance;
};
const std::vector<Precision> kPrecisions{
    {DDP_F32, 1e-5}, {DDP_F64, 1e-12}, {DDP_F16, 2e-3}, {DDP_BF16, 2e-2}};

TEST(PowerSgd, FullRankGivesTheMean) {
    for (const auto& [dtype, tolerance] : kPrecisions)
        for (const char* options : {"rank=100,start=0,min_rate=0",
                                    "rank=100,start=0,min_rate=0,orthogonalization=gram_schmidt"})
            on_ranks({3}, [&, dtype = dtype, tolerance = tolerance](int rank, ddp_group* group) {
                MatrixModel m(group, kShapes, dtype);
                m.context.use_hook("powersgd", options);
                m.context.commit();
                for (int s = 0; s < 4; ++s)
                    for (const int param : kMatrices)
                        expect_near_mean(m, 3, rank, s, param, tolerance);
            });
}

TEST(PowerSgd, FullRankGivesTheSum) {
    on_ranks({3}, [&](int rank, ddp_group* group) {
        MatrixModel m(group, kShapes, DDP_F32, false, buckets_of(1 << 20, DDP_REDUCTION_SUM));
        m.context.use_hook("powersgd", "rank=100,start=0,min_rate=0");
        m.context.commit();
        for (int s = 0; s < 4; ++s)
            for (const int param : kMatrices) expect_near_mean(m, 3, rank, s, param, 1e-5, false);
    });
}

TEST(PowerSgd, VectorsAndSmallMatricesAreExact) {
    for (const auto& [dtype, _] : kPrecisions)
        on_ranks({2}, [dtype = dtype](int rank, ddp_group* group) {
            MatrixModel plain(group, kShapes, dtype), m(group, kShapes, dtype);
            m.context.use_hook("powersgd", "rank=2,start=0,min_rate=2");
            plain.context.commit();
            m.context.commit();
            for (int s = 0; s < 3; ++s) {
                for (auto* model : {&plain, &m})
                    model->step([&](int i) { return gradient(m, rank, s, i); });
                for (const int i : kVectors)
                    EXPECT_EQ(m.numbers(i), plain.numbers(i)) << "parameter " << i;
                // (7 + 5) * 2 * 2 is not less than 7 * 5.
                EXPECT_EQ(m.numbers(4), plain.numbers(4));
                EXPECT_NE(m.numbers(0), plain.numbers(0))
                    << "(20 + 30) * 2 * 2 is less than 20 * 30";
            }
        });
}

TEST(PowerSgd, BeforeItStartsItIsTheDefaultHook) {
    for (const char* hook : {"powersgd", "batched_powersgd"}) {
        const Bytes plain = run("allreduce", "", 4),
                    late = run(hook, "rank=1,start=3,min_rate=1", 4);
        const std::size_t three = plain.size() / 4 * 3;
        EXPECT_TRUE(std::equal(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(three),
                               late.begin()));
        EXPECT_NE(plain, late) << hook << " starts with the fourth step";
    }
}

// The sum of what came out and of what is still kept is the sum of the true gradients; what is kept
// stays bounded.
void expect_feedback(const std::string& hook, ddp_reduction reduction) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel m(group, {{24, 24}}, DDP_F32, true, buckets_of(1 << 20, reduction));
        m.context.use_hook(hook, "rank=2,start=0,min_rate=1");
        m.context.commit();
        const bool mean = reduction == DDP_REDUCTION_MEAN;
        const Numbers truth = total_of(2, mean, [&](int r) { return gradient(m, r, 0, 0); });
        Numbers sum(truth.size());
        double at_40 = 0;
        for (int s = 1; s <= 400; ++s) {
            m.step([&](int i) { return gradient(m, rank, 0, i); });
            const Numbers out = m.numbers(0);
            Numbers lacking(sum.size());
            for (std::size_t k = 0; k < sum.size(); ++k) {
                sum[k] += out[k];
                lacking[k] = sum[k] - s * truth[k];
            }
            const double steps_behind = length_of(lacking) / length_of(truth);
            EXPECT_LT(steps_behind, 20) << "after " << s << " steps";
            if (s == 40) at_40 = steps_behind;
            EXPECT_TRUE(s < 400 || steps_behind < 2 * at_40) << "what is left out grows";
        }
    });
}

TEST(PowerSgd, NothingIsLostOverManySteps) {
    for (const char* hook : {"powersgd", "batched_powersgd"})
        for (const ddp_reduction reduction : {DDP_REDUCTION_MEAN, DDP_REDUCTION_SUM})
            expect_feedback(hook, reduction);
}

// Rank 1 has a gradient in every second step only. Its error feedback waits, and nobody keeps
// anything in its place.
TEST(PowerSgd, NothingIsLostWhereARankHasNoGradient) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.flags = DDP_CONTEXT_FIND_UNUSED;
        MatrixModel m(group, {{24, 24}}, DDP_F32, false, options);
        m.context.use_hook("powersgd", "rank=2,start=0,min_rate=1");
        m.context.commit();
        const auto put = [&](int i) {
            const Bytes values = to_bytes(gradient(m, rank, 0, i), DDP_F32);
            std::memcpy(m.grad(i), values.data(), values.size());
            m.context.grad_ready(i);
        };
        Numbers sum(24 * 24), truth(24 * 24);
        for (int s = 0; s < 200; ++s) {
            m.context.step_begin();
            if (rank == 0 || s % 2 == 0) put(0);
            m.context.finalize();
            const Numbers out = m.numbers(0), of_0 = gradient(m, 0, 0, 0),
                          of_1 = gradient(m, 1, 0, 0);
            for (std::size_t k = 0; k < sum.size(); ++k) {
                sum[k] += out[k];
                truth[k] += (of_0[k] + (s % 2 == 0 ? of_1[k] : 0)) / 2;
            }
        }
        EXPECT_LT(distance(sum, truth) * 200, 20) << "steps behind";
    });
}

TEST(PowerSgd, WithoutErrorFeedbackTheRestIsLost) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel m(group, {{24, 24}});
        m.context.use_hook("powersgd", "rank=1,start=0,min_rate=1,error_feedback=0");
        m.context.commit();
        for (int s = 0; s < 200; ++s) m.step([&](int i) { return gradient(m, rank, 0, i); });
        const Numbers early = m.numbers(0);
        m.step([&](int i) { return gradient(m, rank, 0, i); });
        EXPECT_LT(distance(m.numbers(0), early), 1e-3) << "power iteration has come to an end";
    });
}

TEST(PowerSgd, EveryRankHasTheSameBits) {
    for (const char* backend : {"threads", "threads-plain", "threads-caller", "tcp"})
        for (const char* options :
             {"rank=1,start=0", "rank=2,start=0,min_rate=1", "rank=5,start=1,min_rate=0.5"}) {
            Seen seen;
            on_ranks({3, backend}, [&](int rank, ddp_group* group) {
                MatrixModel m(group, kShapes, DDP_F32, false, buckets_of(1000));
                m.context.use_hook("powersgd", options);
                m.context.commit();
                for (int s = 0; s < 6; ++s) {
                    m.step([&](int i) { return gradient(m, rank, s, i); });
                    seen.add(rank, m.bytes());
                }
            });
            EXPECT_TRUE(seen.same(3)) << backend << " " << options;
        }
}

// run() compares the ranks.
TEST(PowerSgd, AThreadsOwnRoundingMakesNoDifference) {
    const auto upward_on_rank_1 = [](MatrixModel&, int rank, int) {
        std::fesetround(rank == 1 ? FE_UPWARD : FE_TONEAREST);
    };
    for (const char* hook : {"powersgd", "batched_powersgd"})
        run(hook, kOptions, 5, 2, upward_on_rank_1);
}

TEST(PowerSgd, ViewsAndCopiesAreTheSame) {
    EXPECT_EQ(run("powersgd", kOptions, 5),
              run("powersgd", kOptions, 5, 2, {}, 1 << 20, DDP_F32, false));
}

TEST(PowerSgd, OtherBucketsMakeNoDifference) {
    const auto rebuild = [](MatrixModel& m, int, int step) {
        if (step == 3) m.context.request_rebuild();
    };
    for (const char* options : {kOptions, "rank=3,start=1,min_rate=0.5,warm_start=0"}) {
        const Bytes one_bucket = run("powersgd", options, 7);
        EXPECT_EQ(one_bucket, run("powersgd", options, 7, 2, {}, 64));
        EXPECT_EQ(one_bucket, run("powersgd", options, 7, 2, {}, 2000));
        EXPECT_EQ(one_bucket, run("powersgd", options, 7, 2, rebuild, 2000));
    }
}

// Gradients become ready in another order from step 3 on, and the buckets change before step 4.
TEST(PowerSgd, StateSurvivesARebuild) {
    Seen with, without;
    for (const bool rebuilds : {false, true})
        on_ranks({2}, [&](int rank, ddp_group* group) {
            MatrixModel m(group, kShapes, DDP_F32, true, buckets_of(2000));
            m.context.use_hook("powersgd", kOptions);
            m.context.commit();
            for (int s = 0; s < 8; ++s) {
                if (rebuilds && s == 3) m.context.request_rebuild();
                m.step([&](int i) { return gradient(m, rank, s, i); }, rebuilds && s >= 3);
                (rebuilds ? with : without).add(rank, m.bytes());
            }
        });
    EXPECT_TRUE(with.same(2));
    EXPECT_EQ(with.of(0), without.of(0));
}

TEST(PowerSgd, TheSeedAndTheStepDecideWhatIsDrawn) {
    const Bytes seed_0 = run("powersgd", kOptions, 3);
    EXPECT_EQ(seed_0, run("powersgd", kOptions, 3));
    EXPECT_NE(seed_0, run("powersgd", std::string(kOptions) + ",seed=1", 3));
    EXPECT_NE(run("powersgd", std::string(kOptions) + ",seed=1", 3),
              run("powersgd", std::string(kOptions) + ",seed=4294967297", 3))
        << "all 64 bits count";
    EXPECT_NE(seed_0, run("powersgd", std::string(kOptions) + ",warm_start=0", 3));
    // The same gradient in every step, without memory: only Q differs.
    on_ranks({1}, [&](int, ddp_group* group) {
        MatrixModel m(group, {{24, 24}});
        m.context.use_hook("powersgd", "rank=1,start=0,min_rate=1,warm_start=0,error_feedback=0");
        m.context.commit();
        m.step([&](int i) { return gradient(m, 0, 0, i); });
        const Numbers first = m.numbers(0);
        m.step([&](int i) { return gradient(m, 0, 0, i); });
        EXPECT_NE(m.numbers(0), first);
    });
}

TEST(PowerSgd, EpsilonShortensWhatIsDividedByIt) {
    on_ranks({1}, [&](int, ddp_group* group) {
        MatrixModel m(group, {{24, 24}}), plain(group, {{24, 24}});
        m.context.use_hook("powersgd", "rank=1,start=0,min_rate=1,epsilon=1000");
        plain.context.use_hook("powersgd", "rank=1,start=0,min_rate=1");
        for (auto* model : {&m, &plain}) {
            model->context.commit();
            model->step([&](int i) { return gradient(m, 0, 0, i); });
        }
        EXPECT_LT(length_of(m.numbers(0)), 0.01 * length_of(plain.numbers(0)));
        EXPECT_GT(length_of(m.numbers(0)), 0);
    });
}

// A gradient that was zero for a while, or of a lower rank than P: nothing may stay zero for good.
TEST(PowerSgd, GradientsThatVanishComeBack) {
    for (const char* options : {"rank=2,start=0,min_rate=1", "rank=4,start=0,min_rate=1"})
        on_ranks({2}, [&](int rank, ddp_group* group) {
            MatrixModel m(group, {{24, 24}});
            m.context.use_hook("powersgd", options);
            m.context.commit();
            const auto of_rank_one = [&](double factor) {
                Numbers values(24 * 24);
                for (std::size_t k = 0; k < values.size(); ++k)
                    values[k] = factor * std::sin(1.0 + static_cast<double>(k / 24)) *
                                std::cos(static_cast<double>(k % 24));
                return values;
            };
            for (int s = 0; s < 3; ++s) m.step([&](int) { return Numbers(24 * 24); });
            EXPECT_EQ(length_of(m.numbers(0)), 0);
            Numbers sum(24 * 24);
            for (int s = 0; s < 12; ++s) {
                m.step([&](int) { return of_rank_one(rank + 1); });
                const Numbers out = m.numbers(0);
                for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += out[k];
            }
            EXPECT_LT(distance(sum, of_rank_one(12 * 1.5)), 1e-4) << options;
        });
}

TEST(PowerSgd, IntegersAndComplexNumbersAreReducedAsWithoutAHook) {
    for (const char* hook : {"powersgd", "batched_powersgd"})
        for (const ddp_dtype dtype : {DDP_I32, DDP_I64, DDP_C64, DDP_C128})
            EXPECT_EQ(run(hook, "start=0,min_rate=0", 2, 2, {}, 1 << 20, dtype),
                      run("allreduce", "", 2, 2, {}, 1 << 20, dtype));
}

TEST(PowerSgd, InLowerPrecision) {
    for (const char* hook : {"fp16(powersgd)", "bf16(powersgd)", "fp16(batched_powersgd)"}) {
        run(hook, kOptions, 4, 3);
        run(hook, kOptions, 4, 2, {}, 500);
    }
    // A hook that is wrapped uses in f32 the state that it has kept in f64.
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel m(group, kShapes, DDP_F64);
        m.context.use_hook("powersgd", kOptions);
        m.context.commit();
        m.step([&](int i) { return gradient(m, rank, 0, i); });
        m.context.compress_hook(DDP_BF16);
        m.step([&](int i) { return gradient(m, rank, 1, i); });
        EXPECT_EQ(m.context.hook_name(), "bf16(powersgd)");
    });
}

TEST(PowerSgd, RanksWithOtherOptionsAreToldSo) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel m(group, kShapes);
        m.context.use_hook("powersgd", rank == 0 ? "rank=1" : "rank=2");
        m.context.commit();
        EXPECT_THROW(m.step([&](int i) { return gradient(m, rank, 0, i); }), ddp::Error);
    });
}

}  // namespace powersgd_test
