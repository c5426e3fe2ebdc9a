#include "core/attendance.h"

#include <algorithm>
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

void Attendance::require_known(bool devices, std::int64_t step) const {
    if (!shares()) return;
    shares_.require();
    std::string why;
    if (!weighed_)
        why =
            "the batch is shared (ddp_share_batch), and this step has no weight; give the number "
            "of its samples to ddp_set_weight before each ddp_step_begin";
    else if (devices && last_weight_ > 0 && computed_ns_ == 0)
        why =
            "the batch is shared (ddp_share_batch), and only the program knows how long a device "
            "has computed; give that to ddp_batch_time after each step";
    if (!why.empty())
        throw CallError({DDP_ERROR_INVALID_STATE, str("step ", step, ": ", why), -1, -1, -1, step});
}

void Attendance::enter(Group& group, const ContextNumber& number) {
    if (shares()) shares_.enter(group, number.tag(), batch_);
    last_weight_ = 0;
    weighed_ = false;
    computed_ns_ = 0;
}

// In units of 1/1024 ns. The other ranks take it as it is, so only this one computes with
// floating-point numbers.
std::int64_t Attendance::cost(const StepClock& clock) const {
    const std::int64_t ns = computed_ns_ > 0 ? computed_ns_ : clock.computed_ns();
    // A discarded step has computed nothing, whatever the program says.
    if (!shares() || clock.computed_ns() <= 0 || last_weight_ <= 0) return 0;
    constexpr double kMost = 0x1p60;
    return static_cast<std::int64_t>(
        std::clamp(static_cast<double>(ns) * 1024 / last_weight_, 1.0, kMost));
}

StepOutcome Attendance::exchange(Group& group, const ContextNumber& number, bool inputs, bool sync,
                                 const StepClock& clock) const {
    return exchange_step(group, number.tag(), {weight_, own_steps_, !inputs, sync, cost(clock)});
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
    if (!shares()) return;
    shares_.begin(outcome.costs, outcome.sync);
    last_weight_ = inputs ? weight_ : 0;
    weighed_ = false;
    computed_ns_ = 0;
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
