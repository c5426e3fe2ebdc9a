// When the phases of a step happened, and the sums over all steps. Semantics: include/ddp/stats.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "util/deadline.h"

namespace libddp {

class StepClock {
public:
    using Point = Deadline::Clock::time_point;

    struct Times {
        std::int64_t backward_ns = 0, comm_ns = 0, overlap_ns = 0, wait_ns = 0;
    };

    // Ranks have exchanged what a step begins with.
    void begin() {
        begun_ = Deadline::Clock::now();
        computed_ns_ = 0;
    }
    // The rank has computed all gradients of the step that draining() ends.
    void computed() { computed_ns_ = ns(draining_ - begun_); }
    // From begin() to draining(); 0: the last step has not been computed.
    std::int64_t computed_ns() const { return computed_ns_; }
    void first_gradient() { first_gradient_ = Deadline::Clock::now(); }
    // The end of the backward pass.
    void draining(Point at = Deadline::Clock::now()) { draining_ = at; }
    void waited_since(Point start) { wait_ns_ += ns(Deadline::Clock::now() - start); }
    // A bucket was on its way from its launch to its end. At the end of the step, in the order of
    // launches. Times at which several buckets are on their way count once.
    void travelled(Point launch, Point finish) {
        launch = std::max(launch, travelled_until_);
        if (finish <= launch) return;
        comm_ns_ += ns(finish - launch);
        overlap_ns_ += std::max<std::int64_t>(0, ns(std::min(finish, draining_) - launch));
        travelled_until_ = finish;
    }
    // A synced step has ended.
    void end() {
        last_ = {ns(draining_ - first_gradient_), comm_ns_, overlap_ns_, wait_ns_};
        total_.backward_ns += last_.backward_ns;
        total_.comm_ns += last_.comm_ns;
        total_.overlap_ns += last_.overlap_ns;
        total_.wait_ns += last_.wait_ns;
        reset();
    }
    // Forgets the step under way.
    void reset() {
        wait_ns_ = comm_ns_ = overlap_ns_ = 0;
        travelled_until_ = {};
    }

    const Times& last() const { return last_; }
    const Times& total() const { return total_; }

private:
    static std::int64_t ns(Deadline::Clock::duration d) {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
    }

    Point begun_, first_gradient_, draining_, travelled_until_;
    std::int64_t computed_ns_ = 0;
    std::int64_t wait_ns_ = 0, comm_ns_ = 0, overlap_ns_ = 0;
    Times last_, total_;
};

}  // namespace libddp
