#include "core/planner.h"

#include <algorithm>
#include <utility>

#include "core/agreement.h"
#include "core/step_clock.h"
#include "util/log.h"

namespace libddp {
namespace {

std::vector<std::int32_t> reduced_in_reverse(const ParamTable& table) {
    std::vector<std::int32_t> order = reverse_order(table.params().size());
    std::erase_if(order, [&table](std::int32_t id) { return table[id].ignored; });
    return order;
}

}  // namespace

Planner::Planner(const Model& model, const Participation& participation)
    : model_(model), participation_(participation), order_(reduced_in_reverse(model.table)) {}

std::vector<PlanParam> Planner::params() const {
    std::vector<PlanParam> result;
    for (std::int32_t id = 0; id < model_.table.size(); ++id) {
        const Param& p = model_.table[id];
        const BucketClass bucket_class = participation_.frozen(id) ? BucketClass::kFrozen
                                         : p.delayed               ? BucketClass::kDelayed
                                                                   : BucketClass::kNormal;
        result.push_back({p.gradient.bytes, p.gradient.dtype, p.device, bucket_class, p.alone(),
                          p.sparse, p.in_place.memory != nullptr, p.in_place.follows});
    }
    return result;
}

void Planner::set_tunes_caps(bool tunes) {
    tuner_.reset();
    if (tunes) tuner_.emplace(model_.options.reducer.first_cap, model_.options.reducer.caps.back());
}

void Planner::keep() {
    if (order_.recording()) order_.finish();
    due_ = false;
}

void Planner::adopt(const Buckets& buckets) {
    adopted_ = lay_out(buckets);
    due_ = true;
}

void Planner::restart_tuning() {
    if (tuner_) tuner_->restart();
}

bool Planner::tuning(const Group& group, const Hook& hook) const {
    return tuner_ && !tuner_->done() && group.world() > 1 && !hook.depends_on_buckets();
}

void Planner::step_ended(bool learn, std::int64_t synced_steps, const Group& group,
                         const Hook& hook) {
    if (order_.recording()) {
        learn ? order_.finish() : order_.start();
        due_ = due_ || learn;
    }
    if (tuning(group, hook)) {
        tuner_->step_ended(StepClock::Point::clock::now());
        due_ = due_ || tuner_->due();
    }
    const std::int64_t interval = model_.options.reducer.rebuild_interval;
    if (interval > 0 && synced_steps % interval == 0) order_.start();
}

BucketPlan Planner::next(Group& group, const ContextNumber& number, std::int32_t root,
                         const Hook& hook, const BucketPlan& before) {
    due_ = false;
    BucketPlan plan;
    if (adopted_) {
        plan = *std::exchange(adopted_, std::nullopt);
        set_tunes_caps(false);
    } else {
        order_.agree(group, number.tag(), root, model_.options.reducer.consensus_order);
        if (tuning(group, hook)) tune(group, number);
        plan = make();
        keep_orders(plan, before);
    }
    agree_on_plan(group, number.tag(), hash_plan(plan));
    return plan;
}

// The ranks' steps take equally long, but for noise: the mean has less of it.
void Planner::tune(Group& group, const ContextNumber& number) {
    if (!tuner_->due()) return tuner_->skip_step();
    double step_ms = tuner_->step_ms();
    group.run({DDP_COLLECTIVE_ALLREDUCE, nullptr, &step_ms, 1, DDP_F64, DDP_AVG},
              number.tag(Purpose::kPlan));
    tuner_->advance(step_ms, [this](const CapTuner::Caps& caps) { return make(caps); });
    if (tuner_->done() && group.rank() == 0) log(LogLevel::kInfo, "rank 0 chose ", tuner_->text());
}

BucketPlan Planner::common(Group& group, const ContextNumber& number,
                           const BucketPlan& mine) const {
    if (group.world() == 1) return mine;
    Buckets lists;
    try {
        lists = plan_of_rank_0(group, number.tag(), mine, model_.table);
    } catch (const CallError& error) {
        throw Error(group.break_everywhere(error.info()));
    }
    const bool same = std::equal(
        lists.begin(), lists.end(), mine.buckets.begin(), mine.buckets.end(),
        [](const auto& list, const PlanBucket& bucket) { return list == bucket.params; });
    // Buckets that were shared out have the order of the world before.
    BucketPlan plan = same && !model_.options.reducer.shard ? mine : lay_out(lists);
    agree_on_plan(group, number.tag(), hash_plan(plan));
    return plan;
}

}  // namespace libddp
