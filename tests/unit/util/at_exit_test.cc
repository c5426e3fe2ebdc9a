// Functions that run when the process exits.
#include "util/at_exit.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "util/interrupt.h"

namespace libddp {
namespace {

constexpr int kAsked = 7;

// Looks up as a wait does, for longer than one goes without asking.
void wait_a_while(int, const Deadline&) {
    for (int i = 0; i < 10; ++i) {
        if (interrupt::wanted()) _exit(kAsked);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
}

[[noreturn]] void exit_with_a_check() {
    interrupt::install([](void*) -> std::int32_t { return 1; }, nullptr, nullptr, false);
    new AtExit(wait_a_while);  // NOLINT: lives when the process exits
    std::exit(0);
}

// The list is made by the first of them that needs it.
[[noreturn]] void exit_after_many_threads_at_once() {
    constexpr int kThreads = 32;
    std::atomic<int> waiting{kThreads};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&] {
            for (--waiting; waiting > 0;) std::this_thread::yield();
            const AtExit entry([](int, const Deadline&) {}, 100);
        });
    for (std::thread& thread : threads) thread.join();
    std::exit(0);
}

TEST(AtExit, IsPreparedByManyThreadsAtOnce) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (int i = 0; i < 5; ++i)
        EXPECT_EXIT(exit_after_many_threads_at_once(), ::testing::ExitedWithCode(0), "");
}

TEST(AtExit, DoesNotAskTheProgram) {
    EXPECT_EXIT(exit_with_a_check(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace libddp
