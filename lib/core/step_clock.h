// When the phases of a step happened, and the sums over all steps. Semantics: include/ddp/stats.h.
#pragma once

#include <atomic>
#include <cstdint>

#include "util/deadline.h"

namespace libddp {

class StepClock {
public:
    using Point = Deadline::Clock::time_point;

    struct Times {
        std::int64_t backward_ns = 0, comm_ns = 0, overlap_ns = 0, wait_ns = 0;
    };

    void first_gradient() { first_gradient_ = Deadline::Clock::now(); }
    // The end of the backward pass.
    void draining(Point at = Deadline::Clock::now()) { draining_ = at; }
    void waited_since(Point start) { wait_ns_ += ns(Deadline::Clock::now() - start); }
    // A bucket was on its way from its launch to its end. At the end of the step, in the order of launches.
    void travelled(Point launch, Point finish);
    // A synced step has ended.
    void end();
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

    Point first_gradient_, draining_, travelled_until_;
    std::int64_t wait_ns_ = 0, comm_ns_ = 0, overlap_ns_ = 0;
    Times last_, total_;
};

}  // namespace libddp
