// The hook "quantize": gradients in 8 bits, which ranks add up share by share, against the same sum
// written down plainly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "hooks/eight_bits_reference.h"
#include "support/model.h"
#include "support/ranks.h"

namespace eight_bits_test {

void expect_near_the_mean(const Format& format, const Floats& result, int param, int step,
                          int world, std::size_t block) {
    std::vector<double> mean(result.size()), bound(result.size());
    for (int r = 0; r < world; ++r) {
        const Floats x = gradient(r, param, step);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const std::size_t begin = i / block * block;
            const double largest = largest_of(x, begin, std::min(begin + block, x.size()));
            mean[i] += static_cast<double>(x[i]) / world;
            bound[i] += format.bound(x[i], largest) / world;
        }
    }
    for (std::size_t i = 0; i < mean.size(); ++i) {
        const std::size_t begin = i / block * block;
        const double largest = largest_of(result, begin, std::min(begin + block, result.size()));
        const double all = bound[i] + format.bound(std::fabs(mean[i]) + bound[i], largest);
        ASSERT_LE(std::fabs(result[i] - mean[i]), all) << "element " << i;
    }
}

void step(Model& model, int rank, int number) {
    model.context.step_begin();
    for (int p = model.count(); p-- > 0;) {
        const Floats x = gradient(rank, p, number);
        std::copy(x.begin(), x.end(), model.grad(p));
        model.context.grad_ready(p);
    }
    model.context.finalize();
}

Floats result_of(Model& model, int p) {
    return {model.grad(p), model.grad(p) + model.size(p)};
}

ddp_context_options in_buckets_of(std::uint64_t bytes) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = bytes;
    return options;
}

struct Case {
    int world;
    const char* backend;
    std::size_t block;
};
class EightBits : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Worlds, EightBits,
    testing::Values(Case{1, "threads", 256}, Case{2, "threads", 256}, Case{3, "threads", 32},
                    Case{4, "shm", 2048}, Case{5, "shm", 100}, Case{6, "threads", 256},
                    Case{7, "threads", 32}, Case{8, "shm", 256}, Case{9, "threads", 256},
                    Case{1, "tcp", 256}, Case{2, "tcp", 32}, Case{3, "tcp", 256},
                    Case{5, "tcp", 2048}, Case{9, "tcp", 256}, Case{2, "gloo", 256},
                    Case{5, "gloo", 32}, Case{9, "gloo", 256}, Case{3, "hierarchical", 256},
                    Case{4, "hierarchical", 32}, Case{9, "hierarchical", 256}),
    [](const auto& test) { return test.param.backend + std::to_string(test.param.world); });

TEST_P(EightBits, HasTheBitsOfThePlainSumAndItsBound) {
    constexpr int kSteps = 2;
    const Case& c = GetParam();
    std::vector<std::vector<Floats>> expected;  // of formats and steps, by parameter
    for (const Format& format : kFormats)
        for (int s = 0; s < kSteps; ++s) {
            std::vector<Floats>& sums = expected.emplace_back();
            for (int p = 0; p < static_cast<int>(kSizes.size()); ++p) {
                SCOPED_TRACE(testing::Message() << format.name << " parameter " << p);
                sums.push_back(reference(format, p, s, c.world, c.block));
                expect_near_the_mean(format, sums.back(), p, s, c.world, c.block);
            }
        }
    on_ranks({c.world, c.backend}, [&](int rank, ddp_group* group) {
        auto sums = expected.begin();
        for (const Format& format : kFormats) {
            Model model(group, kSizes, true, in_buckets_of(9000));
            model.context.use_hook("quantize", "type=" + std::string(format.name) +
                                                   ",block=" + std::to_string(c.block));
            model.context.commit();
            for (int s = 0; s < kSteps; ++s, ++sums) {
                step(model, rank, s);
                for (int p = 0; p < model.count(); ++p)
                    ASSERT_EQ(result_of(model, p), (*sums)[static_cast<std::size_t>(p)])
                        << format.name << " step " << s << " parameter " << p;
            }
        }
    });
}

// Random numbers belong to elements, so that neither buckets nor owners matter, and ranks agree.
TEST(EightBitsStochastic, BucketsMakeNoDifferenceAndStepsDo) {
    std::vector<Floats> results(3);
    on_ranks({3, "tcp"}, [&](int rank, ddp_group* group) {
        Model one(group, kSizes, true, in_buckets_of(1 << 20)),
            many(group, kSizes, false, in_buckets_of(1000));
        Floats before;
        for (Model* m : {&one, &many}) {
            m->context.use_hook("quantize", "rounding=stochastic");
            m->context.commit();
        }
        for (int s = 0; s < 4; ++s) {
            step(one, rank, 0);
            step(many, rank, 0);
            EXPECT_EQ(one.gradients(), many.gradients()) << "step " << s;
            EXPECT_NE(result_of(one, 0), before) << "the same draws in step " << s;
            before = result_of(one, 0);
            auto& mine = results[static_cast<std::size_t>(rank)];
            mine.insert(mine.end(), before.begin(), before.end());
        }
    });
    EXPECT_EQ(results[1], results[0]);
    EXPECT_EQ(results[2], results[0]);
}

// A training that is continued draws what it would have drawn.
TEST(EightBitsStochastic, StateContinuesTheDraws) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        Model through(group, kSizes, true), resumed(group, kSizes, true);
        for (Model* m : {&through, &resumed}) {
            m->context.use_hook("quantize", "rounding=stochastic,error_feedback=1,type=e5m2");
            m->context.commit();
        }
        for (int s = 0; s < 3; ++s) step(through, rank, s);
        resumed.context.load_hook_state(through.context.save_hook_state());
        for (int s = 3; s < 5; ++s) {
            step(through, rank, s);
            step(resumed, rank, s);
            EXPECT_EQ(through.gradients(), resumed.gradients()) << "step " << s;
        }
        EXPECT_EQ(through.context.save_hook_state(), resumed.context.save_hook_state());
    });
}

// The sum of all results is that of the means, but for what ranks still keep: also what the owner of
// a share loses when it packs the sum.
TEST(EightBitsFeedback, NothingIsLost) {
    constexpr int kSteps = 30;
    for (const int world : {1, 2, 5})
        for (const char* options :
             {"type=int8", "type=e4m3", "type=e5m2,rounding=stochastic", "type=int8,block=32"}) {
            SCOPED_TRACE(testing::Message() << options << " world " << world);
            on_ranks({world}, [&](int rank, ddp_group* group) {
                Model model(group, kSizes, true, in_buckets_of(9000));
                model.context.use_hook("quantize", options + std::string(",error_feedback=1"));
                model.context.commit();
                std::vector<double> results(3000), means(3000);
                for (int r = 0; r < world; ++r) {
                    const Floats x = gradient(r, 0, 0);
                    for (std::size_t i = 0; i < x.size(); ++i)
                        means[i] += static_cast<double>(x[i]) / world;
                }
                double once = 0;
                for (int s = 0; s < kSteps; ++s) {
                    step(model, rank, 0);
                    const Floats result = result_of(model, 0);
                    for (std::size_t i = 0; i < result.size(); ++i) {
                        if (s == 0) once = std::max(once, std::fabs(result[i] - means[i]));
                        results[i] += result[i];
                    }
                }
                for (std::size_t i = 0; i < results.size(); ++i)
                    ASSERT_NEAR(results[i] / kSteps, means[i], 4 * once / kSteps + 1e-6)
                        << "element " << i;
            });
        }
}

// Each rank gets the mean of what it owns; what is not compressed, too.
TEST(EightBitsShards, OwnersGetTheMean) {
    for (const int world : {1, 2, 3, 5})
        for (const char* more : {"", ",min_elements=100", ",error_feedback=1"})
            on_ranks({world}, [&](int rank, ddp_group* group) {
                auto options = in_buckets_of(9000);
                options.flags = DDP_CONTEXT_SHARD;
                Model model(group, kSizes, false, options);
                model.context.set_owner(2, DDP_OWNER_REPLICATED);
                model.context.set_owner(4, DDP_OWNER_WHOLE);
                model.context.commit();
                model.context.use_hook("quantize", std::string("block=64") + more);
                for (int s = 0; s < 3; ++s) {
                    for (int p = model.count(); p-- > 0;) model.context.wait_value(p);
                    step(model, rank, s);
                    std::size_t seen = 0;
                    for (const ddp_piece& piece : model.context.pieces()) {
                        const auto* result = static_cast<const float*>(piece.gradient);
                        std::vector<double> means(model.size(piece.param));
                        double largest = 0;
                        for (int r = 0; r < world; ++r) {
                            const Floats x = gradient(r, piece.param, s);
                            for (std::size_t i = 0; i < x.size(); ++i)
                                means[i] += static_cast<double>(x[i]) / world;
                            largest = std::max<double>(largest, largest_of(x, 0, x.size()));
                        }
                        for (std::int64_t i = 0; i < piece.count; ++i, ++seen) {
                            const double mean = means[static_cast<std::size_t>(piece.first + i)];
                            const double times = std::string(more) == ",error_feedback=1" ? 2 : 1;
                            ASSERT_NEAR(result[i], mean, times * largest / 254 * (1 + 1e-3))
                                << "parameter " << piece.param << " element " << piece.first + i;
                        }
                    }
                    EXPECT_GT(seen, 0u);
                    model.context.publish();
                }
            });
}

// A rank gives its gradients once to the exchange, and then its share.
TEST(EightBitsBytes, AreAtMostAQuarterAndAScale) {
    constexpr std::int64_t kCount = 1 << 18;
    for (const int world : {2, 3, 8, 16, 33, 64})
        on_ranks({world}, [&](int, ddp_group* group) {
            Model model(group, {kCount}, true);
            model.context.use_hook("quantize");
            model.context.commit();
            std::fill_n(model.grad(0), kCount, 1.0f);
            model.context.grad_ready(0);
            model.context.finalize();
            const ddp_stats stats = model.context.stats();
            const double share = 1.0 / world;
            // To others: all but its own share, and then its share, as an allreduce of so many bytes.
            const double sent =
                static_cast<double>(stats.hook_bytes_out) / (1 + share) * 2 * (1 - share);
            const double plain = 2 * (1 - share) * 4 * kCount;
            EXPECT_LE(sent, 0.27 * plain) << "world " << world;
            EXPECT_GE(sent, 0.25 * plain) << "world " << world;
        });
}

}  // namespace eight_bits_test
