#include "core/step_clock.h"

#include <algorithm>

namespace libddp {

void StepClock::end(std::optional<Point> first_launch, Point last_finish) {
    last_ = {};
    last_.backward_ns = ns(draining_ - first_gradient_);
    last_.wait_ns = wait_ns_;
    if (first_launch) {
        last_.comm_ns = ns(last_finish - *first_launch);
        last_.overlap_ns = std::max<std::int64_t>(0, ns(std::min(last_finish, draining_) - *first_launch));
    }
    total_.backward_ns += last_.backward_ns;
    total_.comm_ns += last_.comm_ns;
    total_.overlap_ns += last_.overlap_ns;
    total_.wait_ns += last_.wait_ns;
    reset();
}

}  // namespace libddp
