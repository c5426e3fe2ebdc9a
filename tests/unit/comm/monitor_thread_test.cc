#include "comm/monitor_thread.h"

#include <gtest/gtest.h>

#include <future>

namespace libddp {
namespace {

// A verdict that stands when the monitor begins to watch is posted before its thread starts. The
// thread may then free the group, and must know that it is the monitor's.
TEST(MonitorThread, KnowsItselfInATaskThatWasPostedBeforeItsStart) {
    constexpr int kStarts = 5'000;
    for (int i = 0; i < kStarts; ++i) {
        std::promise<bool> is_this_thread;
        MonitorThread thread{record::Recorder{}};
        thread.post([&] { is_this_thread.set_value(thread.is_this_thread()); });
        thread.start();
        EXPECT_TRUE(is_this_thread.get_future().get()) << "start " << i;
        EXPECT_FALSE(thread.is_this_thread());
    }
}

}  // namespace
}  // namespace libddp
