// The reducer: what happens between the steps of a committed model. Buckets get memory, roles change, the model moves to another group.
// Gradients come in through arrivals(), and leave through results().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/arrivals.h"
#include "core/reducer_parts.h"
#include "core/results.h"

namespace libddp {

class Reducer {
public:
    // Plans (`planned`: these buckets), checks the plan with the other ranks, allocates. Collective.
    // number: of the context, until set_group() gives another.
    Reducer(std::shared_ptr<Group> group, const ContextNumber& number, const Model& model, HookPtr hook,
            const std::vector<std::int32_t>& frozen, std::optional<Planner::Buckets> planned);
    ~Reducer();

    Arrivals& arrivals() { return arrivals_; }
    Results& results() { return results_; }
    const Results& results() const { return results_; }
    const ReducerParts& parts() const { return parts_; }
    // Where a rank of an elastic job may set what ranks agree on elsewhere.
    Planner& planner() { return parts_.planner; }

    // What ranks have agreed on before the first gradient of a step. factor: by which gradients are multiplied before the
    // mean (or sum) over ranks.
    void begin(double factor, bool sync);

    // Between steps. Each throws INVALID_STATE in the middle of one.
    // On a broken group: what the next group starts with.
    void set_sync(bool sync);
    // Throws if ranks have exchanged already what they do in this step.
    void require_not_begun() const;
    void set_hook(HookPtr hook);
    void set_frozen(const std::vector<std::int32_t>& params, bool frozen);
    void skip(const std::vector<std::int32_t>& params);
    void request_rebuild();
    // The plan stays: no rebuild is due, nor is an order recorded for one.
    void keep_plan();
    void adopt_plan(const Planner::Buckets& buckets);
    // If one is due, which is the same on every rank, or always. Collective. root: whose order counts. Views may move.
    void rebuild_if_due(std::int32_t root);
    void rebuild(std::int32_t root);
    // The first part of moving to another group: waits a while for what is under way.
    void leave_group(Group& next);
    // The second. Collective in the new group. The step under way is forgotten. Views may move.
    void set_group(std::shared_ptr<Group> group, const ContextNumber& number);
    // Where the program finds its dense gradients of the CPU there are zeros.
    void clear_gradients();
    // Gradients of unsynced steps wait for a synced one.
    bool accumulates() const;

    bool idle() const { return parts_.phase.load(std::memory_order_acquire) == Phase::kIdle; }
    // Throws INVALID_STATE, saying what the call would have to wait for, unless idle.
    void require_idle() const;
    bool tuning() const { return parts_.planner.tuning(*parts_.group, *parts_.hook.hook()); }
    // Of gradients that were copied: into buckets and back, and by the transport.
    std::uint64_t copied_bytes() const { return parts_.gradients.copied_bytes() + parts_.hook.copied_bytes(); }
    const SparseRows& sparse_result(std::int32_t param) { return parts_.gradients.rows().result(param); }
    const BucketPlan& initial_plan() const { return initial_plan_; }
    std::int64_t rebuilds() const { return rebuilds_; }
    // How often buckets have got memory. Any thread.
    std::int64_t layouts() const { return layouts_.load(std::memory_order_acquire); }

private:
    void begin_record();
    void record_plan() const;
    void end_work();
    void change_buckets(BucketPlan plan);
    void adopt(std::unique_ptr<Layout> layout);
    void agree_on_counts();

    ReducerParts parts_;
    Arrivals arrivals_;
    Results results_;
    BucketPlan initial_plan_;
    std::int64_t rebuilds_ = 0;
    std::atomic<std::int64_t> layouts_{0};
};

}  // namespace libddp
