// Ranks that run out of inputs, and ranks whose gradients weigh differently: what ranks tell each
// other at the beginning of each step.
#pragma once

#include <cstdint>

#include "comm/context_number.h"
#include "comm/group.h"
#include "core/agreement.h"
#include "core/model.h"

namespace libddp {

class Attendance {
public:
    explicit Attendance(const Model& model) : options_(model.options) {}

    // Throws unless it may be a weight.
    void require_weight(double weight) const;
    void set_weight(double weight) { weight_ = weight; }
    // The lowest rank that has no inputs in this step; -1: all have.
    std::int32_t joined() const { return joined_; }

    // Collective. inputs: this rank has some. sync: its step is to be synced.
    StepOutcome exchange(Group& group, const ContextNumber& number, bool inputs, bool sync) const;
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
    const ContextOptions& options_;
    double weight_ = 1;
    std::int32_t joined_ = -1;
    std::int64_t own_steps_ = 0;  // steps begun with inputs since start_over()
};

}  // namespace libddp
