#include "core/step_clock.h"

#include <algorithm>

namespace libddp {

// Times at which several buckets are on their way count once.
void StepClock::travelled(Point launch, Point finish) {
    launch = std::max(launch, travelled_until_);
    if (finish <= launch) return;
    comm_ns_ += ns(finish - launch);
    overlap_ns_ += std::max<std::int64_t>(0, ns(std::min(finish, draining_) - launch));
    travelled_until_ = finish;
}

void StepClock::end() {
    last_ = {ns(draining_ - first_gradient_), comm_ns_, overlap_ns_, wait_ns_};
    total_.backward_ns += last_.backward_ns;
    total_.comm_ns += last_.comm_ns;
    total_.overlap_ns += last_.overlap_ns;
    total_.wait_ns += last_.wait_ns;
    reset();
}

}  // namespace libddp
