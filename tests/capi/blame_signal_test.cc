// The signal for the rank that the others blame (record.h): a program shows with it where it hangs.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "capi/bad_input.h"
#include "support/ranks.h"

namespace blame_signal_test {

std::atomic<int> signals{0};

class BlameSignal : public testing::Test {
protected:
    void SetUp() override {
        struct sigaction action {};
        action.sa_handler = [](int) { ++signals; };
        ASSERT_EQ(sigaction(SIGUSR1, &action, &before_), 0);
        signals = 0;
    }
    void TearDown() override {
        EXPECT_EQ(ddp_set_blame_signal(0, nullptr), DDP_OK);
        EXPECT_EQ(sigaction(SIGUSR1, &before_, nullptr), 0);
    }

    // Three ranks, of which one breaks the group.
    static void break_a_group() {
        on_ranks({3}, [](int rank, ddp_group* group) {
            if (rank == 1) {
                EXPECT_EQ(ddp_group_abort(group, "a test", nullptr), DDP_OK);
            }
            EXPECT_EQ(ddp_barrier(group, nullptr, nullptr), DDP_ERROR_ABORTED);
        });
    }

private:
    struct sigaction before_ {};
};

TEST_F(BlameSignal, ReachesTheProcessOfTheRankAtFaultOnce) {
    ASSERT_EQ(ddp_set_blame_signal(SIGUSR1, nullptr), DDP_OK);
    break_a_group();
    // Another thread may handle it a moment later.
    for (int i = 0; i < 1000 && signals == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(signals, 1) << "the two other ranks are of this process, too, and are not to blame";
}

TEST_F(BlameSignal, IsSentToNobodyByDefaultAndAfterZero) {
    break_a_group();
    ASSERT_EQ(ddp_set_blame_signal(SIGUSR1, nullptr), DDP_OK);
    ASSERT_EQ(ddp_set_blame_signal(0, nullptr), DDP_OK);
    break_a_group();
    EXPECT_EQ(signals, 0);
}

TEST_F(BlameSignal, RefusesNumbersThatAreNoSignals) {
    expect_refused(
        {{"negative", kInvalid, {"signal is -1"}, calling(ddp_set_blame_signal, -1)},
         {"too large", kInvalid, {"signal is 1000"}, calling(ddp_set_blame_signal, 1000)}});
}

}  // namespace blame_signal_test
