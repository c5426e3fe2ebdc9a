// The times of a step, from given points of time.
#include "core/step_clock.h"

#include <gtest/gtest.h>

using namespace libddp;
using std::chrono::nanoseconds;

namespace {

StepClock::Point at(int ns) {
    return StepClock::Point() + nanoseconds(1000 + ns);
}

TEST(StepClock, CountsWhatIsOnTheWayAndNotTheTimeBetween) {
    StepClock clock;
    clock.draining(at(500));
    clock.travelled(at(0), at(10));
    clock.travelled(at(400), at(420));  // 390 later
    clock.end();
    EXPECT_EQ(clock.last().comm_ns, 30);
    EXPECT_EQ(clock.last().overlap_ns, 30);
}

TEST(StepClock, CountsBucketsOnTheWayAtTheSameTimeOnce) {
    StepClock clock;
    clock.draining(at(25));
    clock.travelled(at(0), at(20));
    clock.travelled(at(5), at(15));   // inside the first
    clock.travelled(at(10), at(30));  // half of it
    clock.travelled(at(40), at(50));  // after the backward pass
    clock.end();
    EXPECT_EQ(clock.last().comm_ns, 40);
    EXPECT_EQ(clock.last().overlap_ns, 25);
    clock.draining(at(100));
    clock.end();  // a step that sent nothing
    EXPECT_EQ(clock.last().comm_ns, 0);
    EXPECT_EQ(clock.total().comm_ns, 40);
    EXPECT_EQ(clock.total().overlap_ns, 25);
}

}  // namespace
