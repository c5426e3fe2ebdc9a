// The plan of the next rebuild: whether one is due, and what decides it. That is the order in which
// gradients became ready, the cap, or a plan that the program gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/context_number.h"
#include "core/cap_tuner.h"
#include "core/model.h"
#include "core/participation.h"
#include "hooks/hook.h"

namespace libddp {

class Planner {
public:
    using Buckets = std::vector<std::vector<std::int32_t>>;

    Planner(const Model& model, const Participation& participation);

    // Ranks that come from elsewhere must agree on these.
    bool due() const { return due_; }
    bool recording() const { return order_.recording(); }
    bool tunes_caps() const { return tuner_.has_value(); }
    void set_due(bool due) { due_ = due; }
    // Whether libddp looks for the caps, as it does with tune_caps until the program gives a plan.
    void set_tunes_caps(bool tunes);

    // The order is recorded from the next gradient on.
    void record_order() { order_.start(); }
    void note(std::int32_t param) {
        if (order_.recording()) order_.note(param);
    }
    // The plan stays: no rebuild is due, nor is an order recorded for one.
    void keep();
    void adopt(const Buckets& buckets);
    // Other buckets, as far as the hook or the group decides, are to be measured anew.
    void restart_tuning();
    // libddp has not yet found the cap.
    bool tuning(const Group& group, const Hook& hook) const;
    // The cap that the next rebuild uses.
    std::size_t cap() const { return caps().back(); }
    const ReadyOrder& order() const { return order_; }
    // The plan of ddp_commit.
    void set_first(const BucketPlan& plan) { first_ = plan; }
    const BucketPlan& first() const { return first_; }

    // A synced step has ended, with results that teach something about those to come, or without.
    void step_ended(bool learn, std::int64_t synced_steps, const Group& group, const Hook& hook);
    // Now, from the order so far.
    BucketPlan make() const { return make(caps()); }
    BucketPlan lay_out(const Buckets& buckets) const { return libddp::lay_out(params(), buckets); }
    // The plan of a rebuild that is due. Collective. root: whose order counts. before: the plan of
    // all ranks.
    BucketPlan next(Group& group, const ContextNumber& number, std::int32_t root, const Hook& hook,
                    const BucketPlan& before);
    // The plan of rank 0. A rank may have another if a rebuild has failed there. Collective.
    BucketPlan common(Group& group, const ContextNumber& number, const BucketPlan& mine) const;

private:
    std::vector<PlanParam> params() const;
    BucketPlan make(const std::vector<std::size_t>& caps) const {
        return make_plan(params(), order_.agreed(), caps);
    }
    const std::vector<std::size_t>& caps() const {
        return tuner_ ? tuner_->caps() : model_.options.reducer.caps;
    }
    void tune(Group& group, const ContextNumber& number);

    const Model& model_;
    const Participation& participation_;
    ReadyOrder order_;
    BucketPlan first_;
    std::optional<BucketPlan> adopted_;  // not yet in use
    std::optional<CapTuner> tuner_;      // none: caps stay as they are
    bool due_ = false;
};

}  // namespace libddp
