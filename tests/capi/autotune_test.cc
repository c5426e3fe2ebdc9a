// DDP_CONTEXT_AUTOTUNE: the search for a bucket cap on real ranks, whose steps stay exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace autotune_test {

constexpr std::uint64_t kUsualCap = 256 << 10;
constexpr int kMostSteps = 20000;

ddp_context_options tuned(std::uint32_t flags = 0, std::uint64_t cap = kUsualCap) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = cap;
    options.flags = DDP_CONTEXT_AUTOTUNE | flags;
    return options;
}

// 384 KiB, in 12 parameters of 32 KiB: 1, 2 or 6 buckets.
std::vector<std::int64_t> sizes() {
    return std::vector<std::int64_t>(12, 8192);
}

void step(Model& m, int rank, int world, bool begin = true) {
    if (begin) m.context.step_begin();
    for (int i = m.count() - 1; i >= 0; --i) {
        m.fill(i, static_cast<float>(rank));
        m.context.grad_ready(i);
    }
    m.context.finalize();
    for (int i = 0; i < m.count(); ++i) ASSERT_TRUE(m.holds(i, static_cast<float>(world - 1) / 2));
}

void find(Model& m, int rank, int world) {
    for (int i = 0; i < kMostSteps && m.context.stats().tuning; ++i) step(m, rank, world);
    ASSERT_EQ(m.context.stats().tuning, 0);
}

// Where every bucket takes long, few buckets are fastest, also on a machine that has much else to
// do.
constexpr std::uint64_t kSmallCap = 64 << 10;  // 6 buckets
constexpr int kSlowMs = 15;
std::atomic<int> bucket_ms{kSlowMs};
ddp::Work slow_average(ddp_group* group, ddp_bucket* bucket) {
    std::this_thread::sleep_for(std::chrono::milliseconds(bucket_ms));
    ddp_work* work = nullptr;
    ddp::detail::call(ddp_allreduce, group, static_cast<const void*>(nullptr),
                      ddp_bucket_buffer(bucket), ddp_bucket_count(bucket), ddp_bucket_dtype(bucket),
                      DDP_AVG, &work);
    return ddp::Work(work);
}

TEST(Autotune, RanksFindTheSameCapAndStepsStayExact) {
    for (const char* backend : {"threads", "tcp"}) {
        std::vector<std::uint64_t> caps(3);
        on_ranks({3, backend}, [&](int rank, ddp_group* group) {
            Model m(group, sizes(), std::strcmp(backend, "tcp") != 0, tuned());
            m.context.commit();
            EXPECT_EQ(m.context.stats().tuning, 1);
            EXPECT_EQ(m.context.stats().bucket_cap_bytes, kUsualCap);
            find(m, rank, 3);
            EXPECT_GT(m.context.stats().rebuilds, 3);
            caps[static_cast<std::size_t>(rank)] = m.context.stats().bucket_cap_bytes;
            step(m, rank, 3);
        });
        EXPECT_EQ(caps[0], caps[1]);
        EXPECT_EQ(caps[0], caps[2]);
    }
}

TEST(Autotune, KeepsTheFastestCap) {
    std::vector<std::uint64_t> caps(2);
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, sizes(), true, tuned(0, kSmallCap));
        m.context.set_comm_hook(slow_average);
        m.context.commit();
        EXPECT_EQ(m.context.stats().bucket_count, 6);
        find(m, rank, 2);
        step(m, rank, 2);
        EXPECT_LE(m.context.stats().bucket_count, 2);
        caps[static_cast<std::size_t>(rank)] = m.context.stats().bucket_cap_bytes;
    });
    EXPECT_EQ(caps[0], caps[1]);
    EXPECT_GT(caps[0], kSmallCap);
}

TEST(Autotune, AHookOrAGroupBeginsItAnewAndAPlanEndsIt) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, sizes(), true, tuned(0, kSmallCap));
        m.context.commit();
        find(m, rank, 2);
        m.context.set_comm_hook(slow_average);
        EXPECT_EQ(m.context.stats().tuning, 1);
        find(m, rank, 2);
        EXPECT_LE(m.context.stats().bucket_count, 2);
        const ddp::Group next = m.borrowed.split(0, rank);
        m.context.set_group(next);
        EXPECT_EQ(m.context.stats().tuning, 1);
        for (int i = 0; i < 30; ++i) step(m, rank, 2);
        m.context.adopt_plan(m.context.plan());
        step(m, rank, 2);
        EXPECT_EQ(m.context.stats().tuning, 0);
        EXPECT_EQ(m.context.stats().bucket_cap_bytes, kSmallCap);
        const auto rebuilds = m.context.stats().rebuilds;
        bucket_ms = 0;
        for (int i = 0; i < 200; ++i) step(m, rank, 2);
        EXPECT_EQ(m.context.stats().rebuilds, rebuilds);
    });
    bucket_ms = kSlowMs;
}

TEST(Autotune, APlanFromTheStartLeavesNothingToFind) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model first(group, sizes(), true);
        first.context.commit();
        Model m(group, sizes(), true, tuned());
        m.context.adopt_plan(first.context.plan());
        m.context.commit();
        EXPECT_EQ(m.context.stats().tuning, 0);
        step(m, rank, 2);
    });
}

// Ranks that come from elsewhere: rank 1 has a plan of its own, and rank 0 has done steps, after
// which a rebuild is due.
TEST(Autotune, RanksOfANewGroupSearchTogetherFromRank0sPlan) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        BorrowedGroup common(group);
        const ddp::Group alone = common.split(rank, 0);
        auto options = tuned();
        options.bucket_cap_bytes = kUsualCap / 2;
        Model other(alone.get(), sizes(), true, options);
        other.context.commit();
        Model m(alone.get(), sizes(), true, tuned());
        if (rank == 1) m.context.adopt_plan(other.context.plan());
        m.context.commit();
        const auto buckets = m.context.stats().bucket_count;
        EXPECT_EQ(buckets, rank == 0 ? 2 : 3);
        for (int i = 0; i < 3 * (1 - rank); ++i) step(m, 0, 1);
        m.context.set_group(common);
        EXPECT_EQ(m.context.stats().bucket_count, 2);
        EXPECT_EQ(m.context.stats().tuning, 1);
        step(m, rank, 2, false);
        find(m, rank, 2);
        step(m, rank, 2);
    });
}

TEST(Autotune, UnsyncedStepsAddUpAcrossRebuilds) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, sizes(), true, tuned());
        m.context.commit();
        const std::vector<float> ones(m.size(0), 1 + static_cast<float>(rank));
        const auto put_all = [&] {
            m.context.step_begin();
            for (int p = m.count() - 1; p >= 0; --p) m.context.put(p, ones.data(), DDP_PUT_ADD);
            m.context.finalize();
        };
        for (int i = 0; m.context.stats().tuning && i < kMostSteps; ++i) {
            m.context.set_sync(false);
            put_all();
            put_all();
            m.context.set_sync(true);
            put_all();
            for (int p = 0; p < m.count(); ++p) ASSERT_TRUE(m.holds(p, 4.5, 0)) << i;
        }
        EXPECT_GT(m.context.stats().rebuilds, 3);
    });
}

TEST(Autotune, GradientsInPlaceStayWhereTheyAre) {
    on_ranks({2, "shm"}, [&](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed, tuned());
        std::vector<float> block(12 * 8192);
        for (int p = 0; p < 12; ++p)
            context.add_param<float>(std::to_string(p), {8192}, nullptr, block.data() + p * 8192,
                                     DDP_PARAM_IN_PLACE);
        context.commit();
        for (int i = 0; context.stats().tuning && i < kMostSteps; ++i) {
            context.step_begin();
            for (int p = 11; p >= 0; --p) {
                std::fill_n(block.data() + p * 8192, 8192, static_cast<float>(rank + p));
                context.grad_ready(p);
            }
            context.finalize();
            for (int p = 0; p < 12; ++p)
                ASSERT_EQ(block[static_cast<std::size_t>(p) * 8192 + 5],
                          0.5f + static_cast<float>(p));
        }
        EXPECT_EQ(context.stats().tuning, 0);
    });
}

// The time of a step is never measured, so there is nothing to choose by, and every visit takes as
// many steps as it may.
TEST(Autotune, KeepsTheUsualCapWhereEveryStepRebuilds) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        auto options = tuned(0, kSmallCap);
        options.rebuild_interval = 1;
        Model m(group, std::vector<std::int64_t>(12, 2048), true, options);
        m.context.commit();
        find(m, rank, 2);
        EXPECT_EQ(m.context.stats().bucket_cap_bytes, kSmallCap);
    });
}

TEST(Autotune, TriesNothingWithoutStepBegin) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, sizes(), true, tuned());
        m.context.commit();
        for (int i = 0; i < 50; ++i) step(m, rank, 2, false);
        EXPECT_EQ(m.context.stats().tuning, 1);
        EXPECT_EQ(m.context.stats().rebuilds, 0);
    });
}

TEST(Autotune, TriesNothingWhereBucketsChangeTheResult) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, sizes(), true, tuned());
        m.context.use_hook("batched_powersgd", "start=1000");
        m.context.commit();
        EXPECT_EQ(m.context.stats().tuning, 0);
        for (int i = 0; i < 30; ++i) step(m, rank, 2);
        EXPECT_LE(m.context.stats().rebuilds, 1);
        m.context.use_default_hook();
        EXPECT_EQ(m.context.stats().tuning, 1);
    });
}

TEST(Autotune, OneRankHasNothingToFind) {
    on_ranks({1}, [&](int rank, ddp_group* group) {
        Model m(group, sizes(), true, tuned());
        m.context.commit();
        EXPECT_EQ(m.context.stats().tuning, 0);
        for (int i = 0; i < 20; ++i) step(m, rank, 1);
        EXPECT_LE(m.context.stats().rebuilds, 1);
    });
}

// Steps that are discarded, frozen parameters, rebuilds for other reasons, and a rank that runs out
// of inputs.
TEST(Autotune, GoesOnBesideEverythingElse) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        auto options = tuned(DDP_CONTEXT_JOIN);
        options.rebuild_interval = 7;
        Model m(group, sizes(), true, options);
        m.context.commit();
        for (int i = 0; m.context.stats().tuning && i < kMostSteps; ++i) {
            if (i == 20) m.context.set_frozen({3}, true);
            if (i == 40) m.context.set_frozen({3}, false);
            m.context.step_begin();
            if (i % 11 == 5) {
                m.context.grad_ready(2);
                m.context.discard_step();
                continue;
            }
            if (i >= 20 && i < 40) {
                for (int p = m.count() - 1; p >= 0; --p)
                    if (p != 3) m.context.grad_ready(p);
                m.context.finalize();
                continue;
            }
            step(m, rank, 2, false);
        }
        EXPECT_EQ(m.context.stats().tuning, 0);
        m.context.use_default_hook();
        if (rank == 1) {
            m.context.join();
            return;
        }
        for (int i = 0; m.context.stats().tuning && i < kMostSteps; ++i) {
            m.context.step_begin();
            for (int p = m.count() - 1; p >= 0; --p) m.context.grad_ready(p);
            m.context.finalize();
        }
        EXPECT_EQ(m.context.stats().tuning, 0);
        m.context.join();
    });
}

TEST(Autotune, AllRanksMustAskForIt) {
    on_ranks({2}, [&](int rank, ddp_group* group) {
        Model m(group, {4}, true, rank == 0 ? tuned() : ddp::Context::defaults());
        EXPECT_EQ(facts_of([&] { m.context.commit(); }), (Facts{DDP_ERROR_MISMATCH, 1}));
    });
}

}  // namespace autotune_test
