// The reducer: one step after another from gradients that become ready to gradients that are averaged.
//
//     idle --first gradient--> filling --finalize(_async)--> closing --finalize--> draining --> idle
//                              filling and closing (no_sync) --finalize--> idle
//
// grad_ready is lock-free: an increment of the parameter's count of announcements and a decrement of its bucket's count
// of gradients that it waits for. reducer.cc: gradients come in. reducer_finish.cc: they leave. reducer_layout.cc: what
// happens between steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/context_number.h"
#include "comm/group.h"
#include "core/bucket_store.h"
#include "core/cap_tuner.h"
#include "core/device_streams.h"
#include "core/gradients.h"
#include "core/launch_queue.h"
#include "core/number_check.h"
#include "core/param_table.h"
#include "core/participation.h"
#include "core/plan.h"
#include "core/rows_and_factors.h"
#include "core/step_check.h"
#include "core/step_clock.h"
#include "core/value_check.h"
#include "ddp/overlap.h"
#include "record/recorder.h"

namespace libddp {

struct ReducerOptions {
    static constexpr std::size_t kUsualCap = std::size_t{25} << 20;
    // Where buckets are reduced by the thread that fills them: few enough bytes that they are still in its cache.
    static constexpr std::size_t kCachedCap = std::size_t{1} << 20;
    std::vector<std::size_t> caps = make_caps(0, kUsualCap);
    bool tune_caps = false;     // search for the cap, from caps.back() on
    std::size_t first_cap = 0;  // with tune_caps: the first argument of make_caps for every cap
    bool mean = true;
    bool rebuild = true;
    bool consensus_order = false;
    std::int64_t rebuild_interval = 0;
    bool find_unused = false;
    bool static_graph = false;
    bool keep_local_unused = false;
    bool accumulate = false;   // what an unused gradient holds counts
    bool votes = false;        // agree bucket by bucket whether it is used at all
    bool needs_begin = false;  // every step starts with begin_step()
    bool check = false;        // look for mistakes of the program: StepCheck
    // Synced steps between comparisons of values: ValueCheck.
    std::int64_t check_interval = 0, verify_interval = 0;
    bool verify_buffers = false;
    Nonfinite nonfinite = Nonfinite::kPass;
};

// A user's callback and its state, whose deleter is the user's destroy function.
struct ReducedCallback {
    ddp_reduced_fn fn = nullptr;
    std::shared_ptr<void> user_data;
};

class Reducer final : private LaunchOwner {
public:
    // Plans (`planned`: these buckets), checks the plan with the other ranks, allocates. Collective.
    // streams: of all devices in the table.
    // number: of the context, until set_group() gives another.
    Reducer(std::shared_ptr<Group> group, const ContextNumber& number, const ParamTable& table,
            const ContextStreams& streams, ReducerOptions options, HookPtr hook,
            const std::vector<std::int32_t>& frozen, std::optional<std::vector<std::vector<std::int32_t>>> planned);
    ~Reducer();

    // What ranks have agreed on before the first gradient of a step. factor: by which gradients are multiplied before the
    // mean (or sum) over ranks.
    void begin(double factor, bool sync);
    // stream: none: the caller's.
    void grad_ready(std::int32_t param);
    void grad_ready_on(std::int32_t param, void* stream);
    // add: to what is there since the last synced step, if anything is.
    void put(std::int32_t param, const void* gradient, bool add);
    void grad_ready_sparse(std::int32_t param, const std::int64_t* indices, const void* values, std::size_t count);
    void grad_ready_factors(std::int32_t param, const void* left, const void* right, std::size_t rows);
    void mark_unused(const std::vector<std::int32_t>& params);
    void finalize();
    // The host does not wait for devices: the callers' streams do.
    void finalize_enqueue();
    void finalize_async();
    void wait_param(std::int32_t param);
    // The host does not wait for devices: this stream of the parameter's does.
    void wait_param_on(std::int32_t param, void* stream);
    void discard();
    // A whole step with gradients of zero, for a rank that has no more inputs.
    void shadow();

    // Between steps. Each throws INVALID_STATE in the middle of one.
    // On a broken group: what the next group starts with.
    void set_sync(bool sync);
    // Throws if ranks have exchanged already what they do in this step.
    void require_not_begun() const;
    bool sync() const { return sync_; }
    void set_hook(HookPtr hook);
    const LaunchQueue& queue() const { return queue_; }
    void set_reduced_callback(ReducedCallback callback) { reduced_ = std::move(callback); }
    void set_frozen(const std::vector<std::int32_t>& params, bool frozen);
    void skip(const std::vector<std::int32_t>& params);
    void request_rebuild();
    // The plan stays: no rebuild is due, nor is an order recorded for one.
    void keep_plan();
    // Whether libddp looks for the caps, as it does with tune_caps until the program gives a plan.
    void set_tunes_caps(bool tunes);
    bool tunes_caps() const { return tuner_.has_value(); }
    // It has not yet found them.
    bool tuning() const {
        return tuner_ && !tuner_->done() && group_->world() > 1 && !queue_.hook()->depends_on_buckets();
    }
    // The cap that the next rebuild uses.
    std::size_t cap() const { return caps().back(); }
    void adopt_plan(std::vector<std::vector<std::int32_t>> buckets);
    // The first part of moving to another group: waits a while for what is under way.
    void leave_group(Group& next);
    // The second. Collective in the new group. The step under way is forgotten. Views may move.
    void set_group(std::shared_ptr<Group> group, const ContextNumber& number);

    // True if a rebuild is due. Both the same on every rank.
    bool wants_rebuild() const { return rebuild_due_; }
    // Collective; only between steps. root: whose order counts. Views may move.
    void rebuild(std::int32_t root);

    bool idle() const { return phase_.load(std::memory_order_acquire) == Phase::kIdle; }
    // Throws INVALID_STATE, saying what the call would have to wait for, unless idle.
    void require_idle() const;
    std::int64_t steps() const { return steps_; }
    // Between steps: gradients of unsynced steps wait for a synced one.
    bool accumulates() const { return accumulates_; }
    // Where the program finds its dense gradients of the CPU there are zeros. Between steps.
    void clear_gradients();
    std::int64_t synced_steps() const { return synced_steps_; }
    // How often the program has got means: of a whole step, or of a parameter before the step's end.
    std::int64_t results() const { return results_; }
    // The operations of the group when it last got any (Link::operations_if_all_ended).
    std::int64_t operations_at_result() const { return operations_at_result_; }
    // Whether functions of the program get means before the step's end.
    bool gives_results_early() const { return reduced_.fn || queue_.hook()->gives_results_early(); }
    std::int64_t rebuilds() const { return rebuilds_; }
    // How often buckets have got memory. Any thread.
    std::int64_t layouts() const { return layouts_.load(std::memory_order_acquire); }
    std::uint64_t sent_bytes() const { return sent_bytes_; }
    // Of gradients that were copied: into buckets and back, and by the transport.
    std::uint64_t copied_bytes() const {
        return on_host_.copied_bytes() + on_devices_.copied_bytes() + queue_.copied_bytes();
    }
    std::int32_t unsent_buckets() const { return unsent_buckets_; }
    const BucketStore& buckets() const { return *store_; }
    // Where the program finds the gradient of a parameter that has a place in a bucket.
    std::byte* view(std::int32_t param) const;
    // Whoever has it keeps the memory of today's views.
    std::vector<std::shared_ptr<const void>> view_memory() const;
    const BucketPlan& initial_plan() const { return initial_plan_; }
    const Participation& participation() const { return participation_; }
    const ReadyOrder& ready_order() const { return order_; }
    const StepClock& clock() const { return clock_; }
    // Of the last synced step.
    bool used(std::int32_t param) const { return used_[static_cast<std::size_t>(param)] != 0; }
    const SparseRows& sparse_result(std::int32_t param) { return sparse_.result(param); }

private:
    // Closing: no gradient may come any more. Draining: results are on their way back.
    enum class Phase : std::uint8_t { kIdle, kFilling, kFillingLocal, kClosing, kClosingLocal, kDraining };

    // All that grad_ready touches, in one place.
    struct ParamState : Gradient {
        std::atomic<std::int32_t> calls{0};       // announcements in this step
        std::int32_t uses = 1;                    // announcements that complete the gradient
        std::atomic<bool> waits_for_sync{false};  // announced in a local step, not yet reduced
        Role role = Role::kExpected;
        bool sparse = false, factored = false;
        std::atomic<bool> given{false};  // ddp_put replaces it, and nothing adds up there
        bool has_result = false;
    };
    // Added to `calls` where no announcement may follow any more.
    static constexpr std::int32_t kClosed = 1 << 24;

    ParamState& state(std::int32_t param) { return states_[static_cast<std::size_t>(param)]; }
    const std::string& name(std::int32_t param) const { return table_[param].name; }
    // Where a step tells the CPU from devices. body: called with the gradients of one of them.
    template <class Body>
    void at(const Gradient& gradient, Body body) {
        if (gradient.streams) [[unlikely]]
            body(on_devices_);
        else
            body(on_host_);
    }
    template <class Body>
    void at(const ddp_bucket& bucket, Body body) {
        bucket.stream ? body(on_devices_) : body(on_host_);
    }
    bool discovering() const { return options_.find_unused || (options_.static_graph && !participation_.recorded()); }

    // Gradients come in.
    template <class Side>
    void announce(Side& side, std::int32_t param, ParamState& state, void* from);
    Phase look() const;
    Phase enter(Phase phase);
    void require_filling(Phase phase) const;
    Phase begin_phase();
    bool expects(std::int32_t param, const ParamState& s) const;
    void require_unannounced(std::int32_t param, std::int32_t calls) const;
    void mark_unused(std::int32_t param);
    void take(std::int32_t param, ParamState& s, Phase phase);
    void note_announced(std::int32_t param) {
        if (announced_) announced_[param] = static_cast<record::AnnouncedStep>(steps_ + 1);
    }
    void put_in_place(std::int32_t param, ParamState& s);
    bool put_finite(std::int32_t param, const ParamState& s, bool dense);
    double fill_scale(const ParamState& s) const;
    void put_zeros(std::int32_t param, ParamState& s, bool keep);
    void put_unused(std::int32_t param, ParamState& s);
    bool counts_unused(const ParamState& s) const;
    void warn_of_leftover(std::int32_t param, const ParamState& s);
    [[noreturn]] void refuse(std::int32_t param, const ParamState& s, std::int32_t calls) const;
    void complete_bucket(const ddp_bucket& bucket, const Hook::Target& target) override;
    WorkPtr reduce_alone(Group& group, std::int32_t param, const OpTag& tag) override;

    // Gradients leave.
    void start_draining();
    void collect_accumulated();
    [[noreturn]] void report_missing(const std::vector<std::int32_t>& missing);
    void ask_who_used();
    void drain_until(std::size_t bucket_count);
    std::uint64_t collect(std::int32_t param);
    void forget_given(std::int32_t param);
    void agree_to_skip();
    bool skipping() const { return numbers_ && numbers_->skipping(); }
    std::optional<BadNumber> bad_result(const ddp_bucket& bucket);
    void finish_bucket(const ddp_bucket& bucket);
    void drop(const ddp_bucket& bucket);
    void clear_reduced(const ddp_bucket& bucket, const BucketTensor& tensor);
    void examine(const ddp_bucket& bucket);
    void start_comparison();
    void end_check();
    void report_param(const BucketTensor& tensor);
    bool waits_for_answer(std::int32_t param);
    void settle(const ddp_bucket& bucket, const BucketTensor& tensor, bool wanted);
    void finish_unused();
    void finish_devices();
    void wait_until_final(std::int32_t param);
    void call_reduced(std::int32_t param, bool used);
    void end_local_step();
    void learn();
    void end_synced_step();
    void count_result();

    // Between steps.
    void begin_record();
    void record_plan() const;
    void end_work();
    std::vector<PlanParam> plan_params() const;
    const std::vector<std::size_t>& caps() const { return tuner_ ? tuner_->caps() : options_.caps; }
    BucketPlan make_next_plan(const std::vector<std::size_t>& caps) const;
    void tune();
    BucketPlan common_plan();
    void change_buckets(BucketPlan plan);
    void adopt(std::unique_ptr<BucketStore> store);
    void arm();
    void forget_step();

    std::shared_ptr<Group> group_;
    const ContextNumber* number_;
    const ParamTable& table_;
    const ContextStreams& streams_;
    const ReducerOptions options_;
    LaunchQueue queue_;
    Participation participation_;
    ReadyOrder order_;
    UsedMap used_map_;
    HostGradients on_host_;
    DeviceGradients on_devices_;
    SparseGradients sparse_;
    FactorGradients factors_;
    StepClock clock_;
    record::Recorder recorder_;
    record::AnnouncedStep* announced_ = nullptr;  // for each parameter; null: nothing is recorded
    std::unique_ptr<StepCheck> check_;            // null: not asked for, like the next two
    std::unique_ptr<ValueCheck> values_;
    std::unique_ptr<NumberCheck> numbers_;
    ReducedCallback reduced_;
    std::unique_ptr<BucketStore> store_;
    std::vector<ParamState> states_;
    BucketPlan initial_plan_;
    std::optional<BucketPlan> next_plan_;  // adopted, not yet in use
    std::optional<CapTuner> tuner_;        // none: caps stay as they are

    std::atomic<Phase> phase_{Phase::kIdle};
    bool sync_ = true;
    bool accumulates_ = false;
    bool begun_ = false, begun_sync_ = true;
    bool warned_of_leftover_ = false;
    double factor_ = 1;
    bool enqueue_ = false;  // callers' streams wait for devices, not the host

    // Draining: buckets before this one are finished; gradients that wait for the answer who used them; no result is
    // wanted.
    std::size_t drained_ = 0;
    std::vector<BucketTensor> undecided_;
    bool discarding_ = false, shadowing_ = false;

    std::vector<std::uint8_t> used_;
    bool rebuild_due_ = false;
    std::int64_t steps_ = 0, synced_steps_ = 0, rebuilds_ = 0;
    std::int64_t results_ = 0, operations_at_result_ = -1;
    std::atomic<std::int64_t> layouts_{0};
    std::uint64_t sent_bytes_ = 0;
    std::int32_t unsent_buckets_ = 0;
};

}  // namespace libddp
