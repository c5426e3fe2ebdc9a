// Hosts that do not wait for each other while their devices work: ranks are compared behind what
// they enqueue.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "ddp/ddp.hpp"
#include "support/device_model.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace device_ahead_test {

using std::chrono::milliseconds;

// Before this step ranks have connected, and agreed on a plan.
constexpr int kStep = 3;

class DeviceAheadTest : public DeviceTest {
protected:
    // One step of two buckets, without a wait for the device.
    static void step(DeviceModel& model, int rank, int number) {
        for (int p : {1, 0}) model.give(p, gradient(rank, p, number));
        model.finalize();
    }
    static void expect_means(DeviceModel& model, int number) {
        for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, 15 + p + 100 * number)) << number;
    }
    static float gradient(int rank, int p, int number) {
        return static_cast<float>(10 * (rank + 1) + p + 100 * number);
    }
    static ddp_context_options two_buckets() {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = options.first_bucket_cap_bytes = 256;
        return options;
    }
    struct Model : DeviceModel {
        Model(int rank, ddp_group* group)
            : DeviceModel(group, {64, 300}, true, {rank}, two_buckets()) {}
    };
    // The error of this step or, at the latest, of the next one.
    static Facts first_error(DeviceModel& model, int rank, int number) {
        try {
            step(model, rank, number);
        } catch (const ddp::Error& error) {
            return facts_of(error);
        }
        return facts_of([&] { step(model, rank, number + 1); });
    }
};

TEST_F(DeviceAheadTest, ARankFinalizesAStepThatOthersHaveNotBegun) {
    std::promise<void> finalized;
    std::atomic<int> begun{-1};  // by rank 1
    on_ranks({2, "streams"}, [&](int rank, ddp_group* group) {
        Model model(rank, group);
        model.context.commit();
        for (int number = 0; number < kStep; ++number) {
            if (rank == 1) begun = number;
            step(model, rank, number);
            expect_means(model, number);
        }
        if (rank == 0) {
            step(model, rank, kStep);
            finalized.set_value();
            expect_means(model, kStep);
        } else {
            EXPECT_EQ(finalized.get_future().wait_for(std::chrono::seconds(10)),
                      std::future_status::ready)
                << "rank 0 waits for the others";
            step(model, rank, kStep);
            expect_means(model, kStep);
        }
    });
}

TEST_F(DeviceAheadTest, ARankIsOneStepAheadAtMost) {
    std::atomic<int> begun{-1};  // by rank 1
    on_ranks({2, "streams"}, [&](int rank, ddp_group* group) {
        Model model(rank, group);
        model.context.commit();
        for (int number = 0; number < 12; ++number) {
            if (rank == 1) {
                if (number >= kStep) std::this_thread::sleep_for(milliseconds(20));
                begun = number;
            }
            step(model, rank, number);
            if (rank == 0) {
                EXPECT_GE(begun, number - 1);
            }
        }
        expect_means(model, 11);
    });
}

// The hook of rank 1 takes the maximum where that of rank 0 takes the sum. Either finds it first, and
// names the other.
class DifferentHooks : public DeviceAheadTest {
protected:
    static void use_hook(DeviceModel& model, const std::atomic<bool>& other) {
        model.context.set_comm_hook([&other](ddp_group* group, ddp_bucket* bucket) {
            ddp_work* work = nullptr;
            ddp_error* error = nullptr;
            ddp::check(
                ddp_allreduce(group, nullptr, ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                              DDP_F32, other ? DDP_MAX : DDP_SUM, &work, &error),
                error);  // the group may be broken since the bucket before
            return ddp::Work(work);
        });
    }
    static void expect_mismatch(Facts facts, int number) {
        EXPECT_TRUE(facts.rank == 0 || facts.rank == 1) << facts;
        facts.rank = -1;
        EXPECT_EQ(facts, (Facts{DDP_ERROR_MISMATCH, -1, -1, 0, number}));
    }
    // After kStep steps that are alike, the hooks differ: `told` gives the error of the next one.
    template <class Told>
    static void differ(Told told) {
        on_ranks({2, "streams"}, [&](int rank, ddp_group* group) {
            std::atomic<bool> other{false};
            Model model(rank, group);
            use_hook(model, other);
            model.context.commit();
            for (int number = 0; number < kStep; ++number) step(model, rank, number);
            other = rank == 1;
            expect_mismatch(told(model, rank, group), kStep);
        });
    }
};

TEST_F(DifferentHooks, AreToldByTheNextStepAtTheLatest) {
    differ([](Model& model, int rank, ddp_group*) { return first_error(model, rank, kStep); });
}

TEST_F(DifferentHooks, AreToldInTheSameStepWhereTheHostWaits) {
    differ([](Model& model, int, ddp_group*) {
        return facts_of([&] {
            for (int p : {1, 0}) model.give(p, 1);
            model.context.finalize();
        });
    });
}

TEST_F(DifferentHooks, AreToldByABarrierAfterTheLastStep) {
    differ([](Model& model, int rank, ddp_group* group) {
        return facts_of([&] {
            step(model, rank, kStep);
            ddp_error* error = nullptr;
            ddp::check(ddp_barrier(group, nullptr, &error), error);
        });
    });
}

TEST_F(DifferentHooks, AreToldWhereTheHostWaitsForOneParameter) {
    differ([](Model& model, int, ddp_group*) {
        return facts_of([&] {
            for (int p : {1, 0}) model.give(p, 1);
            model.context.finalize_async();
            model.context.wait(1);
        });
    });
}

// In the very first operation on a device the backend connects, which may wait for other ranks.
TEST_F(DifferentHooks, AreToldInTheFirstStep) {
    on_ranks({2, "streams"}, [&](int rank, ddp_group* group) {
        std::atomic<bool> other{rank == 1};
        Model model(rank, group);
        use_hook(model, other);
        model.context.commit();
        expect_mismatch(first_error(model, rank, 0), 0);
    });
}

TEST_F(DeviceAheadTest, ARankLeavesWhileOthersAreBehind) {
    on_ranks({2, "streams"}, [&](int rank, ddp_group* group) {
        Model model(rank, group);
        model.context.commit();
        for (int number = 0; number <= kStep; ++number) {
            if (rank == 1 && number == kStep) std::this_thread::sleep_for(milliseconds(200));
            step(model, rank, number);
        }
        if (rank == 1) expect_means(model, kStep);
    });
}

// The verdict of the old group is no error of the new one.
TEST_F(DeviceAheadTest, ARankThatWasAheadGoesOnInAnotherGroup) {
    std::promise<void> finalized;
    on_ranks({2, "streams"}, [&](int rank, ddp_group* group) {
        ddp_group* spare = nullptr;
        ASSERT_EQ(ddp_group_split(group, 0, rank, &spare, nullptr), DDP_OK);
        {
            Model model(rank, group);
            model.context.commit();
            for (int number = 0; number < kStep; ++number) step(model, rank, number);
            if (rank == 0) {
                step(model, rank, kStep);
                finalized.set_value();
            } else {
                finalized.get_future().wait_for(std::chrono::seconds(10));
                model.context.abort("on purpose");
            }
            while (ddp_group_status(group, nullptr) == DDP_OK) std::this_thread::yield();
            BorrowedGroup next(spare);
            model.context.set_group(next);
            for (int number = 0; number < 4; ++number) {
                step(model, rank, number);
                expect_means(model, number);
            }
        }
        ddp_group_free(spare);
    });
}

TEST_F(DeviceAheadTest, ARankThatDoesNotComeIsNamed) {
    RankOptions options(2, "streams");
    options.timeout_ms = 3000;
    std::promise<void> told;
    on_ranks(options, [&](int rank, ddp_group* group) {
        Model model(rank, group);
        model.context.commit();
        for (int number = 0; number < kStep; ++number) step(model, rank, number);
        if (rank == 1) {
            told.get_future().wait_for(std::chrono::seconds(20));
            return;
        }
        const Facts facts = first_error(model, rank, kStep);
        EXPECT_EQ(facts.status, DDP_ERROR_TIMEOUT) << facts;
        EXPECT_EQ(facts.rank, 1) << facts;
        EXPECT_EQ(facts.step, kStep) << facts;
        told.set_value();
    });
}

}  // namespace device_ahead_test
