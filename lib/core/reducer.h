// The reducer: what happens between the steps of a committed model. Buckets get memory, roles
// change, the model moves to another group. Gradients come in through arrivals(), and leave through
// results().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/arrivals.h"
#include "core/captured_step.h"
#include "core/reducer_parts.h"
#include "core/results.h"

namespace libddp {

class Reducer {
public:
    // Plans (`planned`: these buckets), checks the plan with the other ranks, allocates.
    // Collective. number: of the context, until set_group() gives another.
    Reducer(std::shared_ptr<Group> group, const ContextNumber& number, const Model& model,
            HookPtr hook, const std::vector<std::int32_t>& frozen,
            std::optional<Planner::Buckets> planned);
    ~Reducer();

    Arrivals& arrivals() { return arrivals_; }
    Results& results() { return results_; }
    const ReducerParts& parts() const { return parts_; }

    // Ranks have agreed on this before the first gradient of a step.
    void begin(double factor, bool sync, std::int64_t share);

    // A step is about to begin, in a capture of the caller's streams or outside of one. Nothing is
    // left of a capture that was given up before a gradient came.
    void forget_capture(bool in_capture) {
        parts_.step->capture = Step::kAnyCapture;
        if (in_capture) require_capturable(parts_);
    }

    // Between steps. Each throws INVALID_STATE in the middle of one.
    // On a broken group: what the next group starts with.
    void set_sync(bool sync);
    // Throws if ranks have exchanged already what they do in this step.
    void require_not_begun() const;
    void set_hook(HookPtr hook);
    void set_frozen(const std::vector<std::int32_t>& params, bool frozen);
    // For one step. authority: the rank whose choice it is; -1: all ranks make the same. Collective
    // if there is one.
    void skip(std::vector<std::int32_t> params, std::int32_t authority);
    Planner& planner();
    std::vector<std::byte> hook_state() const;
    void load_hook_state(const std::byte* data, std::size_t size, bool shared_only);
    // If one is due, which is the same on every rank, or always. Collective. root: whose order
    // counts. Views may move.
    void rebuild_if_due(std::int32_t root);
    void rebuild(std::int32_t root);
    // The first part of moving to another group: waits a while for what is under way.
    void leave_group(Group& next);
    // The second. Collective in the new group. The step under way is forgotten. Views may move.
    void set_group(std::shared_ptr<Group> group, const ContextNumber& number);
    // Where the program finds its dense gradients of the CPU there are zeros.
    void clear_gradients();
    // The gradient, to memory of the program's on the same device.
    void copy_out(std::int32_t param, void* memory, void* stream);
    bool idle() const { return parts_.phase.load(std::memory_order_acquire) == Phase::kIdle; }
    // Throws INVALID_STATE, saying what the call would have to wait for, unless idle.
    void require_idle() const;
    // How often buckets have got memory. Any thread.
    std::int64_t layouts() const { return layouts_.load(std::memory_order_acquire); }

private:
    void begin_record();
    void record_plan() const;
    void end_work();
    void change_buckets(BucketPlan plan, Layout::Before buckets = Layout::Before::kMayStay);
    void move_gradients(BucketPlan plan, Layout::Before buckets);
    bool agree_on_counts(bool differ);

    ReducerParts parts_;
    Arrivals arrivals_;
    Results results_;
    std::atomic<std::int64_t> layouts_{0};
};

}  // namespace libddp
