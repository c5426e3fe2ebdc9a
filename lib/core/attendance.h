// Ranks that run out of inputs, ranks whose gradients weigh differently, and their shares of a
// batch: what ranks tell each other at the beginning of each step.
#pragma once

#include <cstdint>

#include "comm/context_number.h"
#include "comm/group.h"
#include "core/agreement.h"
#include "core/batch_shares.h"
#include "core/model.h"
#include "core/step_clock.h"

namespace libddp {

class Attendance {
public:
    explicit Attendance(const Model& model) : options_(model.options), batch_(model.batch) {}

    // Throws unless it may be a weight.
    void require_weight(double weight) const;
    void set_weight(double weight) {
        weight_ = weight;
        weighed_ = true;
    }
    // How long this rank has computed in the last step, instead of what the clock says.
    void set_computed(std::int64_t ns) { computed_ns_ = ns; }
    // Throws unless this rank can tell the others what shares depend on. devices: the clock says
    // nothing. step: the one that is to begin.
    void require_known(bool devices, std::int64_t step) const;
    // The lowest rank that has no inputs in this step; -1: all have.
    std::int32_t joined() const { return joined_; }
    bool shares() const { return batch_.samples > 0; }
    // In samples. next: of the step after the one that has begun.
    BatchShares::Range share(const Group& group, bool next) const {
        return shares() ? shares_.of(group.rank(), next) : BatchShares::Range{};
    }

    // Collective. The context is in this group from now on.
    void enter(Group& group, const ContextNumber& number);
    // Collective. inputs: this rank has some. sync: its step is to be synced. clock: of the last
    // step.
    StepOutcome exchange(Group& group, const ContextNumber& number, bool inputs, bool sync,
                         const StepClock& clock) const;
    // Whether the ranks' weights have a mean.
    static bool has_mean(const Group& group, const StepOutcome& outcome);
    // A step with this outcome begins. Throws UNEVEN_INPUTS where all ranks stop instead.
    void begin(const StepOutcome& outcome, bool inputs, std::int64_t steps);
    // The reducer takes the mean over all ranks. By this the gradients are multiplied, so that it
    // becomes the mean that is wanted.
    double factor(const Group& group, const StepOutcome& outcome) const;
    // No rank has inputs, or the group is another one: values are equal again, or the program makes
    // them so.
    void start_over();

private:
    std::int64_t cost(const StepClock& clock) const;

    const ContextOptions& options_;
    const GlobalBatch& batch_;
    BatchShares shares_;
    double weight_ = 1, last_weight_ = 0;  // last: in the last step; 0: it does not count
    bool weighed_ = false;                 // the program has given a weight for the next step
    std::int64_t computed_ns_ = 0;         // as the program says; 0: it does not
    std::int32_t joined_ = -1;
    std::int64_t own_steps_ = 0;  // steps begun with inputs since start_over()
};

}  // namespace libddp
