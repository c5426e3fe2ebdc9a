// Which bucket cap suits a running job: tries several on it, in turn, and keeps the fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/plan.h"
#include "util/deadline.h"

namespace libddp {

// A sweep visits the caps one after another, the usual one first. A visit is a rebuild, one step
// that does not count, and some that do. The measure is the time from the end of one synced step to
// that of the next, so the program's own work counts too. Each time is divided by that of the usual
// cap in the same sweep: what slows the machine for a while slows both. Sweeps drop the caps that
// are slow, and the fastest of the last ones is kept if it saves more than kLeastGain.
//
// All ranks must make the same calls between the same steps. Then they visit the same caps at the
// same steps.
class CapTuner {
public:
    using Caps = std::vector<std::size_t>;
    using Point = Deadline::Clock::time_point;
    using Planner = std::function<BucketPlan(const Caps&)>;

    // As make_caps takes them: that of the first bucket is no part of the search.
    CapTuner(std::size_t first_cap, std::size_t usual_cap)
        : first_cap_(first_cap), trials_{{make_caps(first_cap, usual_cap), {}, false}} {}

    // The caps of the next plan.
    const Caps& caps() const { return trials_[current_].caps; }
    // A choice has been made.
    bool done() const { return done_; }
    // A visit is over.
    bool due() const;

    void step_ended(Point now);
    // Do not count the time until the end of the next step.
    void skip_step() { last_end_ = {}; }
    // How long a step of this visit took on this rank.
    double step_ms() const;
    // Once due. step_ms: the same on all ranks. Afterwards caps() may be others.
    void advance(double step_ms, const Planner& plan);
    // As in the beginning: another group, or another hook.
    void restart() { *this = CapTuner(first_cap_, usual_cap()); }
    // The choice, for a person.
    std::string text() const;

private:
    struct Trial {
        Caps caps;
        // of the time of a step to that with the usual cap, one of each sweep
        std::vector<double> ratios;
        bool dropped;  // in no further sweep
        double ratio() const;
        double best() const;
    };

    std::size_t usual_cap() const { return trials_.front().caps.back(); }
    void find_caps(const Planner& plan);
    void begin_sweep();
    void end_sweep();
    void keep_fastest(std::size_t count);
    void choose();

    std::size_t first_cap_;
    std::vector<Trial> trials_;  // the usual one first
    std::size_t current_ = 0;
    int sweep_ = 0;              // 0: before the first
    std::size_t steps_ = 0;      // that count in a visit. 0: not known yet
    double usual_ms_ = 0;        // a step with the usual cap in this sweep
    Point last_end_;             // of a synced step. None: the next time does not count
    std::vector<double> times_;  // of this visit, milliseconds
    std::size_t ended_ = 0;      // steps of this visit
    bool done_ = false;
};

}  // namespace libddp
