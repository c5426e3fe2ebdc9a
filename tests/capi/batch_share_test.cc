// batch_share.h: each rank's share of a global batch. Times are made up, so that each change comes
// in the step in which it must.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace batch_share_test {

using testing::HasSubstr;
using Shares = std::vector<std::int64_t>;

constexpr int kCounted = 15, kSkipped = 2;
// The first step with other shares: that of the last time that counts is under way by then.
constexpr int kFirstChange = kSkipped + kCounted + 1;

ddp_context_options options_of(std::uint32_t flags = 0) {
    auto options = ddp::Context::defaults();
    options.flags = flags;
    options.reduction = DDP_REDUCTION_WEIGHTED_MEAN;
    return options;
}

// A number of each sample of each step.
float sample(int step, std::int64_t i) {
    return static_cast<float>((i * 7 + step * 13) % 64);
}

struct Sharing : Model {
    Sharing(ddp_group* group, std::int64_t samples, std::int64_t multiple = 1,
            std::int64_t most = 0, std::uint32_t flags = 0)
        : Model(group, {4, 300}, true, options_of(flags)), samples_(samples) {
        context.share_batch(samples, multiple, most);
    }

    // The shares of all ranks.
    Shares shares() {
        const auto mine = context.batch_share();
        std::vector<std::int64_t> all(2 * static_cast<std::size_t>(borrowed.world_size()));
        const std::int64_t range[] = {mine.begin, mine.end};
        ddp_error* error = nullptr;
        if (ddp_allgather(borrowed.get(), range, all.data(), 2, DDP_I64, nullptr, &error) != DDP_OK)
            ADD_FAILURE() << take_message(error);
        Shares result;
        std::int64_t end = 0;
        for (std::size_t r = 0; r < all.size(); r += 2) {
            EXPECT_EQ(all[r], end);
            end = all[r + 1];
            result.push_back(end - all[r]);
        }
        EXPECT_EQ(end, samples_);
        return result;
    }
    // The mean gradient of this rank's part of the batch; the result is that of the whole batch.
    void step(int number) {
        const auto mine = context.batch_share();
        context.set_weight(static_cast<double>(mine.size()));
        context.step_begin();
        EXPECT_EQ(context.batch_share().begin, mine.begin);
        EXPECT_EQ(context.batch_share().end, mine.end);
        double sum = 0, whole = 0;
        for (auto i = mine.begin; i < mine.end; ++i) sum += sample(number, i);
        for (std::int64_t i = 0; i < samples_; ++i) whole += sample(number, i);
        announce(static_cast<float>(sum / static_cast<double>(mine.size())));
        context.finalize();
        for (int p = 0; p < count(); ++p)
            for (std::size_t k = 0; k < size(p); ++k)
                ASSERT_NEAR(grad(p)[k], whole / static_cast<double>(samples_), 1e-4);
    }
    void announce(float value) {
        for (int p = count(); p-- > 0;) {
            std::fill_n(grad(p), size(p), value);
            context.grad_ready(p);
        }
    }
    // A step in which this rank takes so long.
    void step_of(int number, double ns) {
        step(number);
        context.batch_time(std::chrono::nanoseconds(static_cast<std::int64_t>(ns)));
    }

private:
    std::int64_t samples_;
};

class BatchShare : public testing::TestWithParam<const char*> {
protected:
    RankOptions ranks(int world) const { return {world, GetParam()}; }
};

// Rank 2 takes three times as long for a sample. The shares change once, in the step in which they
// must, and the mean is that of the whole batch all the while.
TEST_P(BatchShare, FollowsTheSpeedOfRanks) {
    on_ranks(ranks(3), [](int rank, ddp_group* group) {
        Sharing model(group, 84);
        model.context.commit();
        for (int step = 0; step < 3 * kFirstChange; ++step) {
            const Shares want = step < kFirstChange ? Shares{28, 28, 28} : Shares{36, 36, 12};
            ASSERT_EQ(model.shares(), want) << step;
            const double share = static_cast<double>(model.context.batch_share().size());
            model.step_of(step, share * (rank == 2 ? 3000 : 1000));
        }
    });
}

// Pauses of 10 s in fewer than half of the steps, a slow start, and differences of 4 % change
// nothing.
TEST_P(BatchShare, StaysUnderNoise) {
    on_ranks(ranks(3), [](int rank, ddp_group* group) {
        Sharing model(group, 300);
        model.context.commit();
        for (int step = 0; step < 5 * kFirstChange; ++step) {
            ASSERT_EQ(model.shares(), (Shares{100, 100, 100})) << step;
            double ns = 1e6 * (1 + 0.02 * ((step + rank) % 3 - 1));
            if (step < kSkipped) ns += 5e9 * rank;
            if ((step + rank) % 15 < 7) ns += 1e10;
            model.step_of(step, ns);
        }
    });
}

// Half of the time does not depend on the share: the shares get there by and by, and stay.
TEST_P(BatchShare, ComesCloserWithAFixedPart) {
    on_ranks(ranks(2), [](int rank, ddp_group* group) {
        Sharing model(group, 1000);
        model.context.commit();
        Shares before = model.shares();
        int changes = 0;
        for (int step = 0; step < 8 * kFirstChange; ++step) {
            const double share = static_cast<double>(model.context.batch_share().size());
            model.step_of(step, 500'000 + share * (rank == 1 ? 3000 : 1000));
            const Shares now = model.shares();
            if (now != before) {
                EXPECT_GT(now[0], before[0]);  // never too far
                ++changes;
            }
            before = now;
        }
        // 750 and 250 would be even; the last 5 % are not worth a change
        EXPECT_NEAR(static_cast<double>(before[0]), 750, 15);
        EXPECT_GE(changes, 2);
        EXPECT_LE(changes, 4);
    });
}

TEST_P(BatchShare, KeepsMultiplesAndWhatFits) {
    on_ranks(ranks(3), [](int rank, ddp_group* group) {
        Sharing model(group, 96, 8, rank == 0 ? 31 : 0);
        model.context.commit();
        EXPECT_EQ(model.shares(), (Shares{24, 40, 32}));
        for (int step = 0; step < kFirstChange; ++step)
            model.step_of(step, static_cast<double>(model.context.batch_share().size()) *
                                    (rank == 0   ? 1
                                     : rank == 1 ? 1000
                                                 : 4000));
        EXPECT_EQ(model.shares(), (Shares{24, 64, 8}));
    });
}

// A window of unsynced steps has one share, and its mean is that of all its samples.
TEST_P(BatchShare, StaysInAWindow) {
    on_ranks(ranks(2), [](int rank, ddp_group* group) {
        Sharing model(group, 40);
        model.context.commit();
        std::vector<int> changed;
        Shares before = model.shares();
        for (int step = 0; step < 2 * kFirstChange; ++step) {
            model.context.set_sync(step % 4 == 3);
            const auto mine = model.context.batch_share();
            model.context.set_weight(static_cast<double>(mine.size()));
            model.context.step_begin();
            for (int p = 0; p < model.count(); ++p)
                if (step % 4 == 0) std::fill_n(model.grad(p), model.size(p), 0.0f);
            for (int p = model.count(); p-- > 0;) {
                for (std::size_t k = 0; k < model.size(p); ++k)
                    model.grad(p)[k] += static_cast<float>(rank + 1);
                model.context.grad_ready(p);
            }
            model.context.finalize();
            model.context.batch_time(std::chrono::microseconds(mine.size() * (rank == 1 ? 4 : 1)));
            if (step % 4 == 3) {
                const double mean = 4.0 * (before[0] + 2.0 * before[1]) / 40;
                EXPECT_NEAR(model.grad(0)[0], mean, 1e-5);
            }
            if (model.shares() != before) changed.push_back(step);
            before = model.shares();
        }
        EXPECT_EQ(before, (Shares{32, 8}));
        // Step 17 brings the last time that counts, and step 19 ends the window.
        EXPECT_EQ(changed, std::vector<int>{19});
    });
}

// A discarded step and one with a weight of 0 count for nothing: the change is so much later.
TEST_P(BatchShare, CountsStepsThatAllRanksCompute) {
    on_ranks(ranks(2), [](int rank, ddp_group* group) {
        Sharing model(group, 40);
        model.context.commit();
        const auto take = [&](int step) {
            model.step_of(step, static_cast<double>(model.context.batch_share().size()) *
                                    (rank == 1 ? 4000 : 1000));
        };
        for (int step = 0; step < kFirstChange - 1; ++step) take(step);
        model.context.set_weight(rank);
        model.context.step_begin();
        model.announce(1);
        model.context.finalize();
        EXPECT_EQ(model.shares(), (Shares{32, 8}));  // by the steps before it
        for (int step = 0; step < kSkipped + kCounted; ++step) take(step);
        for (int i = 0; i < 3 * kFirstChange; ++i) {
            model.context.set_weight(i % 2 == 0 ? rank : 1);
            model.context.step_begin();
            model.announce(1);
            i % 2 == 0 ? model.context.finalize() : model.context.discard_step();
            model.context.batch_time(std::chrono::hours(1 + 10 * rank));
        }
        EXPECT_EQ(model.shares(), (Shares{32, 8}));
    });
}

// A rank that has joined leaves the shares as they are.
TEST_P(BatchShare, StaysWhileARankHasJoined) {
    on_ranks(ranks(2), [](int rank, ddp_group* group) {
        Sharing model(group, 40, 1, 0, DDP_CONTEXT_JOIN);
        model.context.commit();
        for (int step = 0; step < kFirstChange - 3; ++step)
            model.step_of(step, static_cast<double>(model.context.batch_share().size()) *
                                    (rank == 1 ? 4000 : 1000));
        for (int step = 0; rank == 0 && step < 2 * kFirstChange; ++step) {
            model.context.set_weight(20);
            model.context.step_begin();
            model.announce(1);
            model.context.finalize();
            model.context.batch_time(std::chrono::seconds(1));
        }
        model.context.join();
        EXPECT_EQ(model.shares(), (Shares{20, 20}));
        for (int step = 0; step < 4; ++step)
            model.step_of(step, static_cast<double>(model.context.batch_share().size()) *
                                    (rank == 1 ? 4000 : 1000));
        EXPECT_EQ(model.shares(), (Shares{32, 8}));
    });
}

// libddp's own clock: in its step rank 1 takes four times as long as rank 0 has. Between steps rank
// 0 takes longer, which does not count.
TEST_P(BatchShare, TakesTheTimeFromTheBeginningToTheEndOfAStep) {
    using Clock = std::chrono::steady_clock;
    std::vector<std::atomic<std::int64_t>> taken(kFirstChange);  // by rank 0 in each step
    on_ranks(ranks(2), [&](int rank, ddp_group* group) {
        Sharing model(group, 40);
        model.context.commit();
        for (std::size_t step = 0; step < taken.size(); ++step) {
            if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            model.context.set_weight(static_cast<double>(model.context.batch_share().size()));
            model.context.step_begin();
            const Clock::time_point begin = Clock::now();
            const auto elapsed = [&] { return (Clock::now() - begin).count(); };
            if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            while (rank == 1 && (taken[step] == 0 || elapsed() < 4 * taken[step]))
                std::this_thread::sleep_for(std::chrono::microseconds(100));
            model.announce(1);
            if (rank == 0) taken[step] = elapsed();
            model.context.finalize();
        }
        const Shares shares = model.shares();
        EXPECT_GT(shares[0], 2 * shares[1]);
    });
}

// In another group shares are equal again. One that cannot hold the batch says so, until it can.
TEST_P(BatchShare, BeginsAgainInAnotherGroup) {
    on_ranks(ranks(3), [](int rank, ddp_group* group) {
        Sharing model(group, 84);
        model.context.commit();
        int step = 0;
        const auto take = [&] {
            const double share = static_cast<double>(model.context.batch_share().size());
            model.step_of(step++, share * (rank == 2 ? 3000 : 1000));
        };
        while (step < kFirstChange) take();
        EXPECT_EQ(model.shares(), (Shares{36, 36, 12}));
        take();
        ddp::Group half = model.borrowed.split(rank == 0 ? 0 : 1, rank);
        model.context.set_group(half);
        const auto mine = model.context.batch_share();
        EXPECT_EQ(mine.size(), rank == 0 ? 84 : 42);
        EXPECT_EQ(mine.begin, rank == 2 ? 42 : 0);
        ddp::Group alone = half.split(rank, 0);
        Sharing bounded(alone.get(), 84, 1, 40);
        bounded.context.commit();
        EXPECT_EQ(error_of([&] { bounded.context.batch_share(); }).status(),
                  DDP_ERROR_INVALID_ARGUMENT);
        bounded.context.set_group(model.borrowed);
        EXPECT_EQ(bounded.context.batch_share().size(), 28);
    });
}

TEST_P(BatchShare, RanksMustAskForTheSame) {
    on_ranks(ranks(3), [](int rank, ddp_group* group) {
        {
            Sharing model(group, rank == 1 ? 90 : 84);
            const ddp::Error error = error_of([&] { model.context.commit(); });
            EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH);
            EXPECT_THAT(error.what(), HasSubstr("global batch 84 in multiples of 1"));
        }
        {
            Sharing model(group, 2);
            model.context.commit();
            const ddp::Error error = error_of([&] { model.context.batch_share(); });
            EXPECT_EQ(error.status(), DDP_ERROR_INVALID_ARGUMENT);
            EXPECT_THAT(error.what(), HasSubstr("fewer than the 3 ranks"));
        }
        {
            Sharing model(group, 84, 1, rank == 1 ? 10 : 20);
            model.context.commit();
            model.context.set_weight(1);
            const ddp::Error error = error_of([&] { model.context.step_begin(); });
            EXPECT_EQ(error.status(), DDP_ERROR_INVALID_ARGUMENT);
            EXPECT_THAT(error.what(), HasSubstr("at most 50 samples fit the ranks together"));
        }
    });
}

TEST_P(BatchShare, EachStepNeedsAWeight) {
    on_ranks(ranks(2), [](int, ddp_group* group) {
        Sharing model(group, 40);
        model.context.commit();
        for (int step = 0; step < 2; ++step) {
            const ddp::Error error = error_of([&] { model.context.step_begin(); });
            EXPECT_EQ(error.status(), DDP_ERROR_INVALID_STATE);
            EXPECT_THAT(error.what(), HasSubstr("ddp_set_weight before each ddp_step_begin"));
            model.step(step);
        }
    });
}

TEST(BatchShareAlone, RefusesWhatMakesNoSense) {
    on_ranks(RankOptions(1), [](int, ddp_group* group) {
        const auto refused = [](ddp_status status, const char* why, auto call) {
            const ddp::Error error = error_of(call);
            EXPECT_EQ(error.status(), status);
            EXPECT_THAT(error.what(), HasSubstr(why));
        };
        constexpr ddp_status kInvalid = DDP_ERROR_INVALID_ARGUMENT,
                             kState = DDP_ERROR_INVALID_STATE;
        Model mean(group, {4}, true);
        refused(kState, "WEIGHTED_MEAN", [&] { mean.context.share_batch(8); });
        Sharing model(group, 12, 4, 12);
        auto& context = model.context;
        refused(kInvalid, "samples is 0", [&] { context.share_batch(0); });
        refused(kInvalid, "samples is -4", [&] { context.share_batch(-4); });
        refused(kInvalid, "samples is 4294967297", [&] { context.share_batch((1LL << 32) + 1); });
        refused(kInvalid, "multiple is 0", [&] { context.share_batch(12, 0); });
        refused(kInvalid, "multiple is 5", [&] { context.share_batch(12, 5); });
        refused(kInvalid, "most is 3", [&] { context.share_batch(12, 4, 3); });
        refused(kInvalid, "most is -1", [&] { context.share_batch(12, 4, -1); });
        refused(kState, "ddp_commit", [&] { context.batch_share(); });
        context.commit();
        refused(kState, "no step has ended", [&] { context.batch_time(std::chrono::seconds(1)); });
        model.step(0);
        refused(kInvalid, "ns is 0", [&] { context.batch_time(std::chrono::seconds(0)); });
        refused(kState, "committed already", [&] { context.share_batch(12); });
        context.set_weight(12);
        context.step_begin();
        refused(kState, "has begun", [&] { context.batch_time(std::chrono::seconds(1)); });
        model.announce(1);
        context.finalize();
        EXPECT_EQ(model.shares(), Shares{12});
    });
}

INSTANTIATE_TEST_SUITE_P(, BatchShare, testing::Values("threads", "tcp", "shm"),
                         [](const auto& case_of) { return std::string(case_of.param); });

}  // namespace batch_share_test
