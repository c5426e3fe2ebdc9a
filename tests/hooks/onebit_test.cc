// 1 bit an element: its levels, the sum of the owners of shares, and that what a step leaves out comes
// later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hooks/any_model.h"
#include "hooks/eight_bits_reference.h"
#include "support/model.h"
#include "support/ranks.h"

namespace onebit_test {

using eight_bits_test::Floats;

TEST(OneBit, LevelsAreTheMeansOfPositivesAndOthers) {
    on_ranks({1}, [](int, ddp_group* group) {
        for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64}) {
            AnyModel m(group, {{dtype, 11}, {dtype, 1}, {dtype, 3}}, true);
            m.context.use_hook("onebit", "min_elements=0");
            m.context.commit();
            const std::vector<Numbers> values{
                {1, -2, 3, 0, 5, -6, 3, -0.0, 0, -1, 3}, {-7}, {2, 4, 6}};
            m.step([&](int i) { return values[static_cast<std::size_t>(i)]; });
            EXPECT_EQ(m.numbers(0), (Numbers{3, -1.5, 3, -1.5, 3, -1.5, 3, -1.5, -1.5, -1.5, 3}));
            EXPECT_EQ(m.numbers(1), Numbers{-7});
            EXPECT_EQ(m.numbers(2), (Numbers{4, 4, 4}));
            // The others were left out, and are now all there is.
            m.step([&](int i) { return Numbers(values[static_cast<std::size_t>(i)].size()); });
            EXPECT_EQ(m.numbers(1), Numbers{0});
            EXPECT_EQ(m.numbers(2), (Numbers{-1, -1, 2}));
        }
    });
}

// A list of numbers after it was packed, in blocks from the first one on. The sums are exact.
Floats packed(const Floats& x, std::size_t block) {
    Floats result(x.size());
    for (std::size_t begin = 0; begin < x.size(); begin += block) {
        const std::size_t end = std::min(begin + block, x.size());
        double sums[2] = {}, counts[2] = {};
        for (std::size_t i = begin; i < end; ++i) {
            sums[x[i] > 0] += static_cast<double>(x[i]);
            ++counts[x[i] > 0];
        }
        for (std::size_t i = begin; i < end; ++i)
            result[i] = static_cast<float>(sums[x[i] > 0] / counts[x[i] > 0]);
    }
    return result;
}

// As the owners of the shares compute it.
Floats reference(int param, int world, std::size_t block) {
    Floats sum(static_cast<std::size_t>(eight_bits_test::kSizes[static_cast<std::size_t>(param)]));
    for (int r = 0; r < world; ++r) {
        const Floats x = packed(eight_bits_test::gradient(r, param, 0), block);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += x[i];
    }
    for (float& v : sum) v *= static_cast<float>(1.0 / world);
    return packed(sum, block);
}

TEST(OneBit, HasTheBitsOfThePlainSum) {
    for (int world = 1; world <= 9; ++world)
        for (const char* backend : {"threads", "shm", "tcp", "hierarchical"})
            for (const std::size_t block : {512, 64, 1024})
                on_ranks({world, backend}, [&](int rank, ddp_group* group) {
                    auto options = ddp::Context::defaults();
                    options.bucket_cap_bytes = options.first_bucket_cap_bytes = 9000;
                    Model model(group, eight_bits_test::kSizes, true, options);
                    model.context.use_hook("onebit",
                                           "min_elements=0,block=" + std::to_string(block));
                    model.context.commit();
                    model.context.step_begin();
                    for (int p = model.count(); p-- > 0;) {
                        const Floats x = eight_bits_test::gradient(rank, p, 0);
                        std::copy(x.begin(), x.end(), model.grad(p));
                        model.context.grad_ready(p);
                    }
                    model.context.finalize();
                    for (int p = 0; p < model.count(); ++p)
                        ASSERT_EQ(Floats(model.grad(p), model.grad(p) + model.size(p)),
                                  reference(p, world, block))
                            << backend << world << " block " << block << " parameter " << p;
                });
}

TEST(OneBit, FeedbackLosesNothing) {
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const bool varying : {true, false})
            for (const char* options : {"min_elements=100", "min_elements=100,block=8"})
                expect_nothing_is_lost(dtype, 3, varying, 30, "onebit", options);
    for (int world = 1; world <= 9; ++world)
        expect_nothing_is_lost(DDP_F32, world, true, 30, "onebit", "min_elements=100,block=64");
}

// The mean of what was applied comes ever nearer to the mean of the gradients.
TEST(OneBit, FeedbackConverges) {
    for (const bool varying : {true, false})
        for (const int world : {2, 5}) {
            const auto distance = [=](int steps) {
                return expect_nothing_is_lost(DDP_F64, world, varying, steps, "onebit",
                                              "min_elements=100") /
                       steps;
            };
            EXPECT_LT(distance(1000), distance(10) / 3) << varying << ", world " << world;
        }
}

// Each rank gets the mean of what it owns: with the same gradients in every step, the mean of all
// results comes ever nearer to it.
TEST(OneBit, OwnersOfShardsGetTheMean) {
    constexpr int kSteps = 240;
    for (const int world : {1, 2, 3, 5})
        on_ranks({world}, [&](int rank, ddp_group* group) {
            auto options = ddp::Context::defaults();
            options.bucket_cap_bytes = options.first_bucket_cap_bytes = 9000;
            options.flags = DDP_CONTEXT_SHARD;
            Model model(group, eight_bits_test::kSizes, false, options);
            model.context.set_owner(2, DDP_OWNER_REPLICATED);
            model.context.set_owner(4, DDP_OWNER_WHOLE);
            model.context.commit();
            model.context.use_hook("onebit", "min_elements=100,block=64");
            std::vector<std::vector<double>> results(eight_bits_test::kSizes.size());
            for (int s = 0; s < kSteps; ++s) {
                for (int p = model.count(); p-- > 0;) model.context.wait_value(p);
                model.context.step_begin();
                for (int p = model.count(); p-- > 0;) {
                    const Floats x = eight_bits_test::gradient(rank, p, 0);
                    std::copy(x.begin(), x.end(), model.grad(p));
                    model.context.grad_ready(p);
                }
                model.context.finalize();
                for (const ddp_piece& piece : model.context.pieces()) {
                    auto& sums = results[static_cast<std::size_t>(piece.param)];
                    sums.resize(model.size(piece.param));
                    for (std::int64_t i = 0; i < piece.count; ++i)
                        sums[static_cast<std::size_t>(piece.first + i)] +=
                            static_cast<double>(static_cast<const float*>(piece.gradient)[i]);
                }
                model.context.publish();
            }
            std::size_t seen = 0;
            for (const ddp_piece& piece : model.context.pieces()) {
                std::vector<double> means(model.size(piece.param));
                for (int r = 0; r < world; ++r) {
                    const Floats x = eight_bits_test::gradient(r, piece.param, 0);
                    for (std::size_t k = 0; k < x.size(); ++k)
                        means[k] += static_cast<double>(x[k]) / world;
                }
                const auto& sums = results[static_cast<std::size_t>(piece.param)];
                for (std::int64_t i = piece.first; i < piece.first + piece.count; ++i, ++seen) {
                    const auto k = static_cast<std::size_t>(i);
                    ASSERT_NEAR(sums[k] / kSteps, means[k], 0.15)
                        << "parameter " << piece.param << " element " << i;
                }
            }
            EXPECT_GT(seen, 0u);
        });
}

// To others a rank sends all shares but its own, and then its share: never more than a gather, in
// which it sends all of them to each.
TEST(OneBit, SendsOneBitAnElementAndNoMoreThanAGather) {
    constexpr std::int64_t kCount = 80'000;
    for (int world = 2; world <= 9; ++world)
        for (const auto& [block, bytes] : {std::pair{16, 5000 * 12}, {512, 156 * 72 + 24}})
            on_ranks({world}, [&](int, ddp_group* group) {
                Model model(group, {kCount, 1023}, true);
                model.context.use_hook("onebit", "block=" + std::to_string(block));
                model.context.commit();
                for (int p = 0; p < 2; ++p) {
                    std::fill_n(model.grad(p), model.size(p), 1.0f);
                    model.context.grad_ready(p);
                }
                model.context.finalize();
                // the small parameter is sent as it is
                const double given =
                    static_cast<double>(model.context.stats().hook_bytes_out) - 1023 * 4;
                const double share = given / (world + 1), all = bytes;
                EXPECT_GE(share, all / world);
                EXPECT_LE(share, all / world + 80) << "a block more than the mean";
                const double gather = (world - 1) * all, sent = 2 * (world - 1) * share;
                EXPECT_LE(sent, gather + (world == 2 ? 160 : 0)) << "world " << world;
            });
}

}  // namespace onebit_test
