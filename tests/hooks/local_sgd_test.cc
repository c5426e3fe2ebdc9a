// Post-local SGD: all ranks together at first, then subgroups, or every rank alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace local_sgd_test {

ddp_context_options small_buckets(ddp_reduction reduction = DDP_REDUCTION_MEAN) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = 256;
    options.reduction = reduction;
    return options;
}

// Numbers whose sums are rounded.
float value(int rank, int step, int param, std::size_t k) {
    return std::sin(static_cast<float>(1 + rank * 7 + param * 3 + step) *
                    static_cast<float>(k + 1));
}

void step(Model& m, int rank, int number) {
    m.context.step_begin();
    for (int i = m.count() - 1; i >= 0; --i) {
        for (std::size_t k = 0; k < m.size(i); ++k) m.grad(i)[k] = value(rank, number, i, k);
        m.context.grad_ready(i);
    }
    m.context.finalize();
}

// The value of `all` if the ranks [first, first + count) have reduced their gradients among
// themselves.
std::vector<float> reduced(Model& m, int number, int first, int count, bool mean = true) {
    std::vector<float> values;
    for (int i = 0; i < m.count(); ++i)
        for (std::size_t k = 0; k < m.size(i); ++k) {
            float sum = value(first, number, i, k);
            for (int r = first + 1; r < first + count; ++r) sum += value(r, number, i, k);
            values.push_back(mean ? sum * (1 / static_cast<float>(count)) : sum);
        }
    return values;
}

void use_local_sgd(Model& m, int start) {
    m.context.use_hook("post_local_sgd", "start=" + std::to_string(start));
}

const std::vector<std::int64_t> kSizes{100, 7, 64, 0, 333};

class LocalSgd : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(ViewAndCopy, LocalSgd, testing::Bool());

TEST_P(LocalSgd, BeforeItStartsNothingDiffersFromNoHook) {
    for (const char* backend :
         {"threads", "threads-plain", "threads-single", "threads-caller", "tcp"})
        for (auto reduction : {DDP_REDUCTION_MEAN, DDP_REDUCTION_SUM})
            on_ranks({3, backend}, [&](int rank, ddp_group* group) {
                Model plain(group, kSizes, GetParam(), small_buckets(reduction));
                Model hooked(group, kSizes, GetParam(), small_buckets(reduction));
                plain.context.commit();
                hooked.context.use_hook("post_local_sgd", "start=4");
                hooked.context.commit();
                for (int s = 0; s < 4; ++s) {
                    step(plain, rank, s);
                    step(hooked, rank, s);
                    EXPECT_EQ(plain.gradients(), hooked.gradients()) << backend << " step " << s;
                }
                step(hooked, rank, 4);
                EXPECT_EQ(hooked.gradients(), reduced(hooked, 4, rank, 1));
            });
}

TEST_P(LocalSgd, StartsAtOnceWithStepZero) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, kSizes, GetParam(), small_buckets());
        use_local_sgd(m, 0);
        m.context.commit();
        for (int s = 0; s < 3; ++s) {
            step(m, rank, s);
            EXPECT_EQ(m.gradients(), reduced(m, s, rank, 1));
        }
        EXPECT_EQ(m.context.stats().hook_bytes_out, 0u);
    });
}

TEST_P(LocalSgd, SubgroupsByName) {
    for (const char* backend : {"threads", "threads-plain", "tcp"})
        for (bool mean : {true, false})
            on_ranks({4, backend}, [&](int rank, ddp_group* group) {
                Model m(group, kSizes, GetParam(),
                        small_buckets(mean ? DDP_REDUCTION_MEAN : DDP_REDUCTION_SUM));
                m.context.commit();
                m.context.use_hook("post_local_sgd", "start=2,subgroup=2");
                for (int s = 0; s < 5; ++s) {
                    step(m, rank, s);
                    const auto expected =
                        s < 2 ? reduced(m, s, 0, 4, mean) : reduced(m, s, rank / 2 * 2, 2, mean);
                    EXPECT_EQ(m.gradients(), expected) << backend << " step " << s;
                }
            });
}

TEST_P(LocalSgd, OtherSubgroupsAreAHookOfTheProgram) {
    on_ranks({4}, [&](int rank, ddp_group* group) {
        Model m(group, kSizes, GetParam(), small_buckets());
        m.context.commit();
        // Rank 0 alone, and the other three.
        ddp_group* subgroup = nullptr;
        ddp::detail::call(ddp_group_split, group, rank == 0 ? -1 : 0, std::int32_t{rank},
                          &subgroup);
        const auto reduce = [](void* data, ddp_group*, ddp_bucket* bucket, ddp_work** work,
                               ddp_error** error) {
            auto* own = static_cast<ddp_group*>(data);
            if (!own) return ddp_status{DDP_OK};
            return ddp_allreduce(own, nullptr, ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                                 ddp_bucket_dtype(bucket), ddp_bucket_op(bucket), work, error);
        };
        const auto destroy = [](void* data) { ddp_group_free(static_cast<ddp_group*>(data)); };
        ddp::detail::call(ddp_set_comm_hook, m.context.get(), +reduce, static_cast<void*>(subgroup),
                          +destroy);
        for (int s = 0; s < 3; ++s) {
            step(m, rank, s);
            EXPECT_EQ(m.gradients(), rank == 0 ? reduced(m, s, 0, 1) : reduced(m, s, 1, 3))
                << "step " << s;
        }
    });
}

TEST_P(LocalSgd, ASubgroupOfAllRanksChangesNothing) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, kSizes, GetParam(), small_buckets());
        m.context.commit();
        m.context.use_hook("post_local_sgd", "start=1,subgroup=2");
        for (int s = 0; s < 3; ++s) {
            step(m, rank, s);
            EXPECT_EQ(m.gradients(), reduced(m, s, 0, 2));
        }
    });
}

// As in an elastic job, whose contexts begin in a group of one rank.
TEST_P(LocalSgd, OfOneRankUsesNoGroupThatItLeaves) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        auto alone = BorrowedGroup(group).split(rank);
        Model m(alone.get(), {3}, GetParam());
        m.context.use_hook("post_local_sgd", "start=0");
        m.context.commit();
        const auto both = BorrowedGroup(group).split(0, rank);
        m.context.set_group(both);
        alone.abort("nobody needs it");
        step(m, rank, 0);
        EXPECT_EQ(m.gradients(), reduced(m, 0, rank, 1));
    });
}

TEST_P(LocalSgd, CountsSyncedStepsOnly) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, kSizes, GetParam(), small_buckets());
        m.context.commit();
        use_local_sgd(m, 2);
        m.context.set_sync(false);
        for (int s = 0; s < 3; ++s) step(m, rank, s);
        m.context.set_sync(true);
        for (int s = 3; s < 7; ++s) {
            step(m, rank, s);
            EXPECT_EQ(m.gradients(), s < 5 ? reduced(m, s, 0, 2) : reduced(m, s, rank, 1))
                << "step " << s;
        }
    });
}

TEST_P(LocalSgd, AnotherStartOnAnotherRankIsAMismatch) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, kSizes, GetParam(), small_buckets());
        m.context.commit();
        use_local_sgd(m, 3 + rank);
        const Facts facts = facts_of([&] { step(m, rank, 0); });
        EXPECT_EQ(facts, (Facts{DDP_ERROR_MISMATCH, facts.rank, -1, 0, 0}));
    });
}

TEST_P(LocalSgd, GoesOnWhereASavedOneStopped) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        std::vector<unsigned char> saved;
        {
            Model m(group, kSizes, GetParam(), small_buckets());
            use_local_sgd(m, 3);
            m.context.commit();
            for (int s = 0; s < 2; ++s) step(m, rank, s);
            saved = m.context.save_hook_state();
        }
        Model m(group, kSizes, GetParam(), small_buckets());
        use_local_sgd(m, 3);
        m.context.commit();
        step(m, rank, 7);  // what it counts here is replaced
        m.context.load_hook_state(saved);
        for (int s = 2; s < 5; ++s) {
            step(m, rank, s);
            EXPECT_EQ(m.gradients(), s < 3 ? reduced(m, s, 0, 2) : reduced(m, s, rank, 1))
                << "step " << s;
        }
    });
}

// A model of one layer, y = w x, trained on four ranks: the gradient of rank r in step s at weights
// w.
constexpr std::size_t kInputs = 5;
std::vector<float> gradient(int rank, int step, const std::vector<float>& w) {
    std::vector<float> x(kInputs);
    float wrong = 0;
    for (std::size_t k = 0; k < kInputs; ++k) {
        x[k] = value(rank, step, 0, k);
        wrong += (w[k] - static_cast<float>(k)) * x[k];
    }
    for (float& xk : x) xk *= wrong;
    return x;
}

// The mean as the ranks compute it: in the order of the ranks, divided at the end.
void average(std::vector<std::vector<float>>& values, std::size_t first, std::size_t count) {
    std::vector<float> mean = values[first];
    for (std::size_t r = first + 1; r < first + count; ++r)
        for (std::size_t k = 0; k < kInputs; ++k) mean[k] += values[r][k];
    for (float& m : mean) m *= 1 / static_cast<float>(count);
    for (std::size_t r = first; r < first + count; ++r) values[r] = mean;
}

// The same training in one process: from step `start` on pairs of ranks share gradients, and from
// there on all models are averaged every `period` steps.
std::vector<std::vector<float>> simulate(int steps, int start, int period) {
    std::vector<std::vector<float>> weights(4, std::vector<float>(kInputs, 1));
    for (int s = 0; s < steps; ++s) {
        std::vector<std::vector<float>> gradients;
        for (int r = 0; r < 4; ++r)
            gradients.push_back(gradient(r, s, weights[static_cast<std::size_t>(r)]));
        if (s < start) {
            average(gradients, 0, 4);
        } else {
            average(gradients, 0, 2);
            average(gradients, 2, 2);
        }
        for (std::size_t r = 0; r < 4; ++r)
            for (std::size_t k = 0; k < kInputs; ++k) weights[r][k] -= 0.1f * gradients[r][k];
        if (s >= start && (s - start) % period == 0) average(weights, 0, 4);
    }
    return weights;
}

TEST(LocalSgdTraining, EqualsASimulationBitForBit) {
    constexpr int kSteps = 20, kStart = 5, kPeriod = 4;
    const auto expected = simulate(kSteps, kStart, kPeriod);
    EXPECT_NE(expected[0], expected[3]) << "the pairs must not be equal at the end";
    on_ranks({4}, [&](int rank, ddp_group* group) {
        Model m(group, {kInputs}, false);
        m.data[0].assign(kInputs, 1);
        m.context.commit();
        m.context.use_hook("post_local_sgd", "start=5,subgroup=2");
        ddp::Averager averager(m.context, kPeriod, kStart);
        for (int s = 0; s < kSteps; ++s) {
            m.context.step_begin();
            const auto mine = gradient(rank, s, m.data[0]);
            std::copy(mine.begin(), mine.end(), m.grad(0));
            m.context.grad_ready(0);
            m.context.finalize();
            for (std::size_t k = 0; k < kInputs; ++k) m.data[0][k] -= 0.1f * m.own[0][k];
            EXPECT_EQ(averager.step(), s >= kStart && (s - kStart) % kPeriod == 0 ? 4 : 0)
                << "step " << s;
        }
        EXPECT_EQ(m.data[0], expected[static_cast<std::size_t>(rank)]);
    });
}

}  // namespace local_sgd_test
