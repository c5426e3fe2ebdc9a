// PowerSGD, one square matrix for each bucket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hooks/matrix_model.h"

namespace powersgd_batched_test {

// Sizes that leave gaps in a bucket, and an empty parameter.
const std::vector<Shape> kShapes{{20, 30}, {13}, {6, 4, 3, 3}, {0}, {7, 5}, {1}, {50}};

struct Precision {
    ddp_dtype dtype;
    double tolerance;
};

TEST(BatchedPowerSgd, FullRankGivesTheMeanOrTheSum) {
    for (const Precision precision : {Precision{DDP_F32, 2e-5}, Precision{DDP_F64, 1e-12},
                                      Precision{DDP_F16, 2e-3}, Precision{DDP_BF16, 2e-2}})
        for (const ddp_reduction reduction : {DDP_REDUCTION_MEAN, DDP_REDUCTION_SUM})
            for (const std::uint64_t bucket : {1 << 20, 300})
                on_ranks({2}, [&](int rank, ddp_group* group) {
                    MatrixModel m(group, kShapes, precision.dtype, true,
                                  buckets_of(bucket, reduction));
                    m.context.use_hook("batched_powersgd", "rank=1000,start=0,min_rate=0");
                    m.context.commit();
                    for (int s = 0; s < 4; ++s) {
                        m.step([&](int i) { return gradient(m, rank, s, i); });
                        for (int i = 0; i < m.count(); ++i) {
                            const Numbers truth =
                                total_of(2, reduction == DDP_REDUCTION_MEAN,
                                         [&](int r) { return gradient(m, r, s, i); });
                            // Rounding errors are those of the bucket's largest numbers.
                            EXPECT_LE(distance(m.numbers(i), truth), 4 * precision.tolerance)
                                << i << " in step " << s;
                        }
                    }
                });
}

TEST(BatchedPowerSgd, EveryRankHasTheSameBits) {
    for (const char* options :
         {"rank=1,start=0", "rank=2,start=1,min_rate=1", "rank=5,start=0,min_rate=0.5"})
        for (const std::uint64_t bucket : {1 << 20, 1500}) {
            Seen seen;
            on_ranks({3, "tcp"}, [&](int rank, ddp_group* group) {
                MatrixModel m(group, kShapes, DDP_F32, false, buckets_of(bucket));
                m.context.use_hook("batched_powersgd", options);
                m.context.commit();
                for (int s = 0; s < 6; ++s) {
                    m.step([&](int i) { return gradient(m, rank, s, i); });
                    seen.add(rank, m.bytes());
                }
            });
            EXPECT_TRUE(seen.same(3)) << options;
        }
}

// The gradient of a parameter is the same in every step, and the buckets are not: the errors go
// with the parameters.
TEST(BatchedPowerSgd, ErrorsMoveWithTheirParametersToOtherBuckets) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel m(group, {{16, 16}, {16, 16}, {200}}, DDP_F32, true, buckets_of(1100));
        m.context.use_hook("batched_powersgd", "rank=2,start=0,min_rate=1");
        m.context.commit();
        std::vector<Numbers> sums(3);
        constexpr int kSteps = 60;
        for (int s = 0; s < kSteps; ++s) {
            if (s % 5 == 2) m.context.request_rebuild();
            m.step([&](int i) { return gradient(m, rank, 0, i); }, s % 10 >= 5);
            for (int i = 0; i < 3; ++i) {
                const Numbers out = m.numbers(i);
                auto& sum = sums[static_cast<std::size_t>(i)];
                sum.resize(out.size());
                for (std::size_t k = 0; k < out.size(); ++k) sum[k] += out[k];
            }
        }
        EXPECT_GE(m.context.stats().rebuilds, 5);
        for (int i = 0; i < 3; ++i) {
            const Numbers truth = total_of(2, true, [&](int r) { return gradient(m, r, 0, i); });
            Numbers all = truth;
            for (double& x : all) x *= kSteps;
            EXPECT_LT(distance(sums[static_cast<std::size_t>(i)], all), 0.25) << "parameter " << i;
        }
    });
}

// A bucket too small to gain anything is averaged as it is.
TEST(BatchedPowerSgd, SmallBucketsAreExact) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        MatrixModel m(group, {{7, 5}}), plain(group, {{7, 5}});
        m.context.use_hook("batched_powersgd", "rank=2,start=0");
        for (auto* model : {&m, &plain}) {
            model->context.commit();
            model->step([&](int i) { return gradient(m, rank, 0, i); });
        }
        EXPECT_EQ(m.bytes(), plain.bytes());
    });
}

}  // namespace powersgd_batched_test
