// Steps of a context through the public ABI: averages, views, order, no_sync, rebuild, buffers,
// missing gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

using testing::HasSubstr;

namespace context_test {

struct Case {
    int world;
    bool view;
    const char* backend;
    const char* backend_options;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
    std::string name = std::string(info.param.backend) + "_" + info.param.backend_options + "_" +
                       std::to_string(info.param.world) + (info.param.view ? "_view" : "_copy");
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
    return name;
}

class ContextTest : public testing::TestWithParam<Case> {
protected:
    RankOptions ranks() const {
        RankOptions o;
        o.world = GetParam().world;
        o.backend = GetParam().backend;
        o.backend_options = GetParam().backend_options;
        return o;
    }
    bool view() const { return GetParam().view; }
    float world() const { return static_cast<float>(GetParam().world); }
    // The mean over ranks of rank + 1.
    float mean() const { return (world() + 1) / 2; }
};

INSTANTIATE_TEST_SUITE_P(
    All, ContextTest,
    testing::Values(Case{1, true, "threads", ""}, Case{2, true, "threads", ""},
                    Case{2, false, "threads", ""}, Case{4, true, "threads", ""},
                    Case{4, false, "threads-plain", ""}, Case{2, true, "threads-plain", ""},
                    Case{4, false, "threads-single", ""}, Case{4, true, "threads-caller", ""},
                    Case{1, false, "tcp", ""}, Case{2, true, "tcp", ""},
                    Case{2, false, "tcp", "algorithm=ring"}, Case{4, true, "tcp", "algorithm=ring"},
                    Case{4, false, "gloo", "algorithm=bcube"}, Case{3, false, "gloo", ""},
                    Case{2, true, "shm", ""}, Case{3, false, "shm", ""}),
    name_of);

TEST_P(ContextTest, AveragesOverManySteps) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = 400;
        options.first_bucket_cap_bytes = 100;
        Model m(group, {10, 100, 1, 0, 57, 33}, view(), options);
        m.context.commit();
        EXPECT_GT(ddp_context_bucket_count(m.context.get()), 1);
        for (int step = 0; step < 20; ++step) {
            m.context.step_begin();
            for (int i = m.count() - 1; i >= 0; --i) {
                m.fill(i, static_cast<float>((rank + 1) * (step + i + 1)) * 12);
                m.context.grad_ready(i);
            }
            m.context.finalize();
            for (int i = 0; i < m.count(); ++i)
                EXPECT_TRUE(m.holds(i, mean() * static_cast<float>(step + i + 1) * 12))
                    << step << " " << i;
        }
    });
}

TEST_P(ContextTest, RanksMayAnnounceInAnyOrderFromManyThreads) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 200;
        Model m(group, std::vector<std::int64_t>(40, 20), view(), options);
        m.context.commit();
        std::mt19937 random(static_cast<unsigned>(rank));
        for (int step = 0; step < 10; ++step) {
            m.context.step_begin();
            std::vector<int> order(40);
            for (int i = 0; i < 40; ++i) order[static_cast<std::size_t>(i)] = i;
            std::shuffle(order.begin(), order.end(), random);
            std::atomic<std::size_t> next{0};
            auto work = [&] {
                for (std::size_t at; (at = next.fetch_add(1)) < order.size();) {
                    m.fill(order[at], static_cast<float>(rank + 1) * 60);
                    m.context.grad_ready(order[at]);
                }
            };
            std::thread a(work), b(work);
            work();
            a.join();
            b.join();
            m.context.finalize();
            for (int i = 0; i < 40; ++i)
                EXPECT_TRUE(m.holds(i, mean() * 60)) << "step " << step << " param " << i;
        }
    });
}

TEST_P(ContextTest, SumReduction) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.reduction = DDP_REDUCTION_SUM;
        Model m(group, {5, 7}, view(), options);
        m.context.commit();
        for (int i = 0; i < 2; ++i) {
            m.fill(i, static_cast<float>(rank + 1));
            m.context.grad_ready(i);
        }
        m.context.finalize();
        for (int i = 0; i < 2; ++i) EXPECT_TRUE(m.holds(i, mean() * world(), world()));
    });
}

TEST_P(ContextTest, CommitSendsRankZerosValues) {
#ifdef DDP_SANITIZED
    constexpr std::int64_t kLarge = 200000;
#else
    constexpr std::int64_t kLarge = 2000000;
#endif
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Model m(group, {3, kLarge}, view());
        for (auto& d : m.data) std::fill(d.begin(), d.end(), static_cast<float>(rank + 7));
        std::vector<double> buffer(5, rank + 0.5);
        m.context.add_buffer<double>("running", {5}, buffer.data());
        m.context.commit();
        for (auto& d : m.data)
            EXPECT_EQ(std::count(d.begin(), d.end(), 7.0f), static_cast<std::ptrdiff_t>(d.size()));
        EXPECT_THAT(buffer, testing::Each(0.5));
    });
}

TEST_P(ContextTest, BuffersFollowRankZeroAfterSyncedStepsOnly) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Model m(group, {3}, view());
        std::vector<float> buffer{0};
        m.context.add_buffer<float>("running", {1}, buffer.data());
        m.context.commit();
        auto step = [&](bool sync) {
            m.context.set_sync(sync);
            m.context.step_begin();
            m.fill(0, 1);
            m.context.grad_ready(0);
            m.context.finalize();
        };
        buffer[0] = static_cast<float>(rank + 1);
        step(true);
        EXPECT_EQ(buffer[0], static_cast<float>(rank + 1)) << "nothing was synced before this step";
        step(false);
        EXPECT_EQ(buffer[0], 1.0f) << "step_begin after a synced step sends rank 0's";
        buffer[0] = static_cast<float>(rank + 10);
        step(true);
        EXPECT_EQ(buffer[0], static_cast<float>(rank + 10)) << "the step before was local";
        m.context.step_begin();
        EXPECT_EQ(buffer[0], 10.0f);
    });
}

TEST_P(ContextTest, NoSyncAccumulatesLocallyAndTheNextSyncReducesTheSum) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Model m(group, {6, 4}, view());
        m.context.commit();
        for (int round = 0; round < 3; ++round) {
            for (int i = 0; i < 2; ++i) std::fill(m.grad(i), m.grad(i) + m.size(i), 0.0f);
            for (int micro = 0; micro < 3; ++micro) {
                m.context.set_sync(micro == 2);
                m.context.step_begin();
                for (int i = 1; i >= 0; --i) {
                    for (std::size_t k = 0; k < m.size(i); ++k)
                        m.grad(i)[k] += static_cast<float>((rank + 1) * (micro + 1) * 12);
                    m.context.grad_ready(i);
                }
                m.context.finalize();
                if (micro == 2) continue;
                EXPECT_EQ(m.grad(0)[0], static_cast<float>((rank + 1) * 12 * (micro == 0 ? 1 : 3)))
                    << "stays local";
            }
            for (int i = 0; i < 2; ++i) EXPECT_TRUE(m.holds(i, mean() * 72, 0));
        }
    });
}

TEST_P(ContextTest, AGradientAnnouncedOnlyWithoutSyncIsStillReduced) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Model m(group, {2, 2}, view());
        m.context.commit();
        m.context.set_sync(false);
        m.fill(0, static_cast<float>(rank + 1) * 12);
        m.context.grad_ready(0);
        m.context.finalize();
        m.context.set_sync(true);
        m.fill(1, static_cast<float>(rank + 1) * 24);
        m.context.grad_ready(1);
        m.context.finalize();
        EXPECT_TRUE(m.holds(0, mean() * 12));
        EXPECT_TRUE(m.holds(1, mean() * 24));
    });
}

TEST_P(ContextTest, RebuildFollowsRankZerosOrderAndKeepsGradients) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 4;
        Model m(group, {2, 3, 4, 5}, view(), options);
        m.context.commit();
        EXPECT_EQ(m.context.layout_generation(), 1);
        EXPECT_EQ(ddp_context_param_bucket(m.context.get(), 3), 0);
        const std::vector<int> order =
            rank == 0 ? std::vector<int>{1, 3, 0, 2} : std::vector<int>{0, 1, 2, 3};
        for (int step = 0; step < 3; ++step) {
            m.context.step_begin();
            for (int i : order) {
                m.fill(i, static_cast<float>(i));
                m.context.grad_ready(i);
            }
            m.context.finalize();
        }
        EXPECT_EQ(m.context.layout_generation(), 2);
        for (int position = 0; position < 4; ++position) {
            const int expected[] = {1, 3, 0, 2};
            EXPECT_EQ(ddp_context_param_bucket(m.context.get(), expected[position]), position);
        }
        for (int i = 0; i < 4; ++i) EXPECT_TRUE(m.holds(i, static_cast<float>(i)));
    });
}

TEST_P(ContextTest, RebuildMovesTheBytesOfViews) {
    on_ranks(ranks(), [&](int, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 64;
        Model m(group, {2, 30, 4}, view(), options);
        m.context.commit();
        for (int i = 0; i < 3; ++i) {
            m.fill(i, static_cast<float>(i * 100));
            m.context.grad_ready(i);
        }
        m.context.finalize();
        m.context.step_begin();
        EXPECT_EQ(m.context.layout_generation(), 2);
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(m.holds(i, static_cast<float>(i * 100)));
    });
}

TEST_P(ContextTest, AHeldLayoutOutlivesRebuildContextAndGroup) {
    ddp_layout* held[4] = {};
    float* views[4] = {};
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 64;
        Model m(group, {2, 30, 4}, view(), options);
        m.context.commit();
        ASSERT_EQ(ddp_layout_hold(m.context.get(), &held[rank], nullptr), DDP_OK);
        views[rank] = m.context.grad_view<float>(1);
        for (int i = 0; i < 3; ++i) {
            m.fill(i, static_cast<float>(i));
            m.context.grad_ready(i);
        }
        m.context.finalize();
        m.context.step_begin();
        EXPECT_EQ(m.context.layout_generation(), 2);
        EXPECT_NE(m.context.grad_view<float>(1), views[rank]);
    });
    for (int rank = 0; rank < ranks().world; ++rank) {
        EXPECT_EQ(views[rank][29], 30.0f);  // fill adds the index
        views[rank][29] = 2.0f;
        ddp_layout_free(held[rank]);
    }
}

TEST_P(ContextTest, AMissingGradientIsTheSameErrorOnEveryRank) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 4;
        Model m(group, {2, 2, 2}, view(), options);
        const int culprit = GetParam().world - 1;
        const Facts facts = facts_of([&] {
            // the culprit may be through with the whole step before this returns
            m.context.commit();
            for (int i = 2; i >= 0; --i) {
                if (rank == culprit && i == 1) continue;
                m.fill(i, 1);
                m.context.grad_ready(i);
            }
            m.context.finalize();
        });
        EXPECT_EQ(facts, (Facts{DDP_ERROR_MISSING_GRADIENT, culprit, 1, 1, 0}));
        EXPECT_THROW(m.context.finalize(), ddp::Error) << "a broken context stays broken";
    });
}

TEST_P(ContextTest, ReadyTwiceIsAnErrorThatBreaksNothing) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Model m(group, {2, 2}, view());
        m.context.commit();
        m.fill(0, static_cast<float>(rank + 1) * 12);
        m.fill(1, static_cast<float>(rank + 1) * 12);
        m.context.grad_ready(1);
        EXPECT_EQ(facts_of([&] { m.context.grad_ready(1); }),
                  (Facts{DDP_ERROR_INVALID_STATE, -1, 1, 0, 0}));
        m.context.grad_ready(0);
        m.context.finalize();
        EXPECT_TRUE(m.holds(1, mean() * 12));
    });
}

TEST_P(ContextTest, DifferentModelsAreNoFailureOfTheGroup) {
    if (GetParam().world == 1) GTEST_SKIP() << "needs two ranks";
    struct Difference {
        std::vector<std::int64_t> sizes;
        std::int32_t param;
    };
    for (const auto& difference :
         {Difference{{3, 5}, 1}, Difference{{3, 4, 9}, 2}, Difference{{3}, 1}})
        on_ranks(ranks(), [&](int rank, ddp_group* group) {
            Model m(group, rank == 1 ? difference.sizes : std::vector<std::int64_t>{3, 4}, view());
            EXPECT_EQ(facts_of([&] { m.context.commit(); }),
                      (Facts{DDP_ERROR_MISMATCH, 1, difference.param}));
            EXPECT_EQ(ddp_group_status(group, nullptr), DDP_OK) << "the group stays healthy";
        });
}

// The first rank to see the difference ends the group at once, as one does whose process exits.
TEST(Context, EveryRankHearsHowTheModelsDiffer) {
    for (int round = 0; round < 40; ++round)
        on_ranks({3, "tcp"}, [&](int rank, ddp_group* group) {
            std::vector<std::int64_t> sizes(2000, 1);
            if (rank == 1) sizes[0] = 2;
            Model m(group, sizes, true);
            EXPECT_EQ(facts_of([&] { m.context.commit(); }), (Facts{DDP_ERROR_MISMATCH, 1, 0}));
            if (rank == 0) ddp_group_abort(group, "rank 0 ends", nullptr);
        });
}

TEST_P(ContextTest, AbortEndsEveryRanksStep) {
    if (GetParam().world == 1) GTEST_SKIP() << "needs two ranks";
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Model m(group, {2}, view());
        try {
            m.context.commit();
            if (rank == 0) {
                m.context.abort("out of patience");
            } else {
                m.context.grad_ready(0);
                m.context.finalize();
                ADD_FAILURE() << "finalize succeeded";
            }
        } catch (const ddp::Error& e) {
            EXPECT_EQ(e.status(), DDP_ERROR_ABORTED) << e.what();
            EXPECT_THAT(e.what(), HasSubstr("out of patience"));
            EXPECT_EQ(e.rank(), 0);
        }
    });
}

}  // namespace context_test
