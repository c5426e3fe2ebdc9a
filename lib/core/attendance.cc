#include "core/attendance.h"

#include <cmath>

#include "util/error.h"

namespace libddp {

void Attendance::require_weight(double weight) const {
    if (!options_.weighted)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the context was not created with DDP_REDUCTION_WEIGHTED_MEAN");
    if (!std::isfinite(weight) || weight < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "weight is ", weight,
                  "; it must be finite and not negative");
}

StepOutcome Attendance::exchange(Group& group, const ContextNumber& number, bool inputs,
                                 bool sync) const {
    return exchange_step(group, number.tag(), {weight_, own_steps_, !inputs, sync});
}

bool Attendance::has_mean(const Group& group, const StepOutcome& outcome) {
    return outcome.total_weight > 0 && std::isfinite(outcome.total_weight * group.world());
}

void Attendance::begin(const StepOutcome& outcome, bool inputs, std::int64_t steps) {
    if (options_.stop_at_first_join && outcome.first_joined >= 0)
        throw CallError({DDP_ERROR_UNEVEN_INPUTS,
                         str("rank ", outcome.first_joined,
                             " has no more inputs, and with DDP_CONTEXT_STOP_AT_FIRST_JOIN all "
                             "ranks stop then"),
                         outcome.first_joined, -1, -1, steps});
    joined_ = outcome.first_joined;
    if (inputs) ++own_steps_;
}

double Attendance::factor(const Group& group, const StepOutcome& outcome) const {
    const double world = group.world();
    if (options_.weighted) return weight_ * world / outcome.total_weight;
    return options_.divide_by_present ? world / outcome.present : 1.0;
}

void Attendance::start_over() {
    joined_ = -1;
    own_steps_ = 0;
}

}  // namespace libddp
