#include "core/results.h"

#include <utility>

#include "core/captured_step.h"
#include "core/step_check.h"
#include "core/step_votes.h"
#include "core/unused.h"
#include "util/error.h"

namespace libddp {
namespace {

// Counts the time from its making to its end as waiting.
class Waiting {
public:
    explicit Waiting(StepClock& clock) : clock_(clock), start_(Deadline::Clock::now()) {}
    ~Waiting() { clock_.waited_since(start_); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

private:
    StepClock& clock_;
    const StepClock::Point start_;
};

// Throws INVALID_STATE if nothing is sharded.
Publisher& publisher_of(const ReducerParts& parts) {
    if (!parts.observers.publisher)
        fail_call(DDP_ERROR_INVALID_STATE, "create the context with DDP_CONTEXT_SHARD");
    return *parts.observers.publisher;
}

// As long as the scope lasts, callers' streams wait for devices, or the host does.
class Enqueueing {
public:
    Enqueueing(bool& enqueue, bool value)
        : enqueue_(enqueue), before_(std::exchange(enqueue, value)) {}
    ~Enqueueing() { enqueue_ = before_; }
    Enqueueing(const Enqueueing&) = delete;
    Enqueueing& operator=(const Enqueueing&) = delete;

private:
    bool& enqueue_;
    const bool before_;
};

}  // namespace

void Results::finalize() {
    parts_.group->check();
    const bool captured = parts_.step->captured();
    if (!enqueue_) refuse_in_graph(parts_, "ddp_finalize");
    const Phase phase = parts_.phase.load(std::memory_order_acquire);
    if (phase != Phase::kClosing && phase != Phase::kClosingLocal)
        in_call("ddp_finalize", [this] { start_draining(); });
    if (parts_.phase.load(std::memory_order_acquire) == Phase::kClosingLocal)
        return end_local_step();
    parts_.phase.store(Phase::kDraining, std::memory_order_release);
    {
        const Waiting waiting(parts_.totals.clock);
        drain_until(parts_.layout->size());
        finish_unused();
        parts_.model.streams.gather(captured);
        if (captured) keep_in_graph(parts_);
        finish_devices();
        // The host does not wait for other ranks, so this one may be a step ahead. But nobody
        // compares what a graph does later.
        if (enqueue_) parts_.queue.finish_comparisons(/*of_step_before=*/!captured);
        for (const auto& observer : parts_.observers.all) observer->on_end(parts_);
    }
    std::optional<ErrorInfo> skipped;
    if (parts_.step->has_results()) skipped = parts_.step->skipped;
    end_synced_step();
    if (skipped) throw CallError(*skipped);
}

void Results::finalize_enqueue() {
    join_graph_of_callers(parts_);
    const Enqueueing scope(enqueue_, true);
    finalize();
}

void Results::finalize_async() {
    parts_.group->check();
    join_graph_of_callers(parts_);
    start_draining();
}

// Wherever it is called, the host waits.
void Results::wait_param(std::int32_t param) {
    refuse_in_graph(parts_, "ddp_wait_param");
    const Enqueueing scope(enqueue_, false);
    wait_until_final(param);
}

void Results::wait_param_on(std::int32_t param, void* stream) {
    parts_.model.table.require(param);
    DeviceStreams* streams = parts_.gradients[param].streams;
    if (!streams) return wait_param(param);
    const CallerScope caller(streams, stream);
    if (parts_.phase.load(std::memory_order_acquire) == Phase::kClosing)
        join_graph_of_callers(parts_);
    const Enqueueing scope(enqueue_, true);
    wait_until_final(param);
}

void Results::wait_until_final(std::int32_t param) {
    parts_.model.table.require(param);
    parts_.group->check();
    const Phase phase = parts_.phase.load(std::memory_order_acquire);
    if (phase == Phase::kClosingLocal) return;
    if (phase != Phase::kClosing)
        fail_call(DDP_ERROR_INVALID_STATE, "call it between ddp_finalize_async and ddp_finalize");
    const ParamState& s = parts_.gradients[param];
    if (s.bucket < 0) return;
    const Waiting waiting(parts_.totals.clock);
    const auto finish = [&](auto& side) {
        side.finish(*parts_.group, parts_.step->number, enqueue_);
    };
    drain_until(static_cast<std::size_t>(s.bucket) + 1);
    if (parts_.step->skipped) throw CallError(*parts_.step->skipped);
    parts_.gradients.at(s, finish);
    // The answer who used it comes after the last bucket.
    const Unused* const unused = parts_.discovering();
    if (unused && unused->postponed(param)) {
        drain_until(parts_.layout->size());
        finish_unused();
        parts_.gradients.at(s, finish);
    }
    parts_.count_result();
}

void Results::discard() {
    parts_.group->check();
    refuse_in_graph(parts_, "ddp_step_discard");
    const Phase phase = parts_.phase.load(std::memory_order_acquire);
    if (phase == Phase::kClosing || phase == Phase::kClosingLocal)
        parts_.refuse_in_step(
            str("ddp_finalize must follow ddp_finalize_async of step ", parts_.totals.steps));
    if (parts_.observers.publisher && parts_.observers.publisher->updates())
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "parameters are updated in the step (ddp_set_update), so buckets that are on "
                  "their way cannot be taken back");
    if (phase == Phase::kIdle) parts_.begin_step();  // where it throws nothing is discarded
    parts_.step->end = Step::End::kDiscarded;
    start_draining();
    parts_.gradients.forget_window();
    if (parts_.phase.load(std::memory_order_acquire) == Phase::kClosingLocal)
        return end_local_step();
    parts_.phase.store(Phase::kDraining, std::memory_order_release);
    drain_until(parts_.layout->size());
    parts_.model.streams.gather();
    finish_devices();
    // A rank that finalized meets this message in its next step.
    std::uint8_t agreed = 0;
    parts_.group->run({DDP_COLLECTIVE_ALLREDUCE, nullptr, &agreed, 1, DDP_U8, DDP_MAX},
                      parts_.queue.step_tag(Purpose::kDiscard));
    end_synced_step();
}

void Results::publish() {
    parts_.group->check();
    publisher_of(parts_).publish(parts_);
}

void Results::require_updates() const {
    publisher_of(parts_);
    const ReducerOptions& options = parts_.model.options.reducer;
    if (options.find_unused || options.static_graph || options.nonfinite == Nonfinite::kSkip ||
        options.check_interval > 0 || options.verify_interval > 0)
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "with DDP_CONTEXT_FIND_UNUSED, DDP_CONTEXT_STATIC_GRAPH, "
                  "DDP_CONTEXT_SKIP_NONFINITE, DDP_CONTEXT_CHECK and verify_interval ranks agree "
                  "at the end of a step what it changes, or compare values; update after "
                  "ddp_finalize, and call ddp_publish");
    if (!parts_.model.streams.empty())
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "the context has parameters on a device; update them after ddp_finalize_on, and "
                  "call ddp_publish");
    if (parts_.observers.norms)
        fail_call(
            DDP_ERROR_UNSUPPORTED,
            "the norms that ddp_track_grad_norm asks for are known after the last bucket, and "
            "count gradients that the update leaves alone; update after ddp_finalize, and "
            "call ddp_publish");
}

void Results::set_updates(Updates updates, std::uint64_t how) {
    InstalledHook::Continuation continuation;
    parts_.totals.in_step = how;
    if (updates.pieces)
        continuation = [this](const ddp_bucket& bucket, const OpTag& tag) {
            return publisher_of(parts_).update(parts_, bucket, tag);
        };
    publisher_of(parts_).set_updates(parts_, std::move(updates));
    parts_.hook.continue_with(std::move(continuation));
    parts_.next_step(parts_.step->begin);
}

void Results::wait_value(std::int32_t param, std::optional<void*> stream) {
    parts_.model.table.require(param);
    parts_.group->check();
    if (parts_.observers.publisher) parts_.observers.publisher->wait(parts_, param, stream);
}

void Results::apply_means(std::uint64_t update) {
    parts_.group->check();
    Totals& totals = parts_.totals;
    if (parts_.gradients.any_waits())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "gradients of unsynced steps wait beside the means of the last synced step; call "
                  "it after a synced step, before the next one begins");
    const char* why = nullptr;
    switch (totals.means) {
        case Means::kNone:
            why = "no step has given means yet in this group";
            break;
        case Means::kSkipped:
            why = "all ranks skipped or discarded the last step, so there is nothing to apply";
            break;
        case Means::kApplied:
            why = "the means of the last step have been applied already";
            break;
        case Means::kPublished:
            why =
                "ddp_publish or ddp_set_update has sent the values of the last step, and the "
                "gradients are gone";
            break;
        case Means::kThere:
            break;
    }
    if (why)
        fail_call(DDP_ERROR_INVALID_STATE, why,
                  "; call it once after each step that ddp_finalize "
                  "ended without an error");
    totals.means = Means::kApplied;
    // The step that comes next has compared nothing yet.
    parts_.step->agreement ^= totals.update ^ update;
    totals.update = update;
}

void Results::shadow() {
    parts_.step->end = Step::End::kShadowed;
    finalize();
}

void Results::start_draining() {
    // Gradients that are not announced in this step come after the callers' streams as they are
    // now.
    parts_.model.streams.follow_callers();
    Phase phase = parts_.phase.load(std::memory_order_acquire);
    if (phase == Phase::kIdle) phase = parts_.begin_step();
    const bool local = phase == Phase::kFillingLocal;
    if ((!local && phase != Phase::kFilling) ||
        !parts_.phase.compare_exchange_strong(phase, local ? Phase::kClosingLocal : Phase::kClosing,
                                              std::memory_order_acq_rel))
        parts_.refuse_in_step(
            str("the end of step ", parts_.totals.steps, " has been called before"));
    const Waiting waiting(parts_.totals.clock);
    parts_.totals.clock.draining();
    if (parts_.step->has_results()) parts_.totals.clock.computed();
    parts_.recorder.write({record::EventKind::kBackwardEnd, parts_.step->number});
    if (local) return;
    arrivals_.close();
    parts_.queue.launch_ready();
    for (const auto& observer : parts_.observers.all) observer->on_close(parts_);
}

void Results::drain_until(std::size_t bucket_count) {
    Step& step = *parts_.step;
    for (const auto& observer : parts_.observers.all) observer->before_results(parts_);
    while (step.drained < bucket_count) {
        const ddp_bucket& bucket = parts_.queue.wait(step.drained);
        ++step.drained;  // before callbacks, which may wait for parameters themselves
        if (!enqueue_) parts_.queue.finish_comparisons(/*of_step_before=*/false);
        finish_bucket(bucket);
    }
}

void Results::finish_bucket(const ddp_bucket& bucket) {
    const auto index = static_cast<std::size_t>(bucket.index);
    const auto& planned = parts_.layout->plan().buckets[index];
    const Step& step = *parts_.step;
    const bool keeps_unused = parts_.model.options.reducer.keep_local_unused;
    // Then observers have seen the results, and the bucket has values.
    const bool updated = parts_.observers.publisher && parts_.observers.publisher->updates();
    if (step.has_results() && !updated)
        for (const auto& observer : parts_.observers.all) observer->on_bucket(parts_, bucket);
    if (planned.alone)
        parts_.totals.sent_bytes += parts_.gradients.collect(planned.params.front());
    else if (parts_.queue.sent(index))
        parts_.totals.sent_bytes += planned.content;
    if (step.skipped) return drop(bucket);
    if (step.discarded()) clear_results(bucket);
    for (const auto& tensor : bucket.tensors) {
        if (!step.has_results() || updated) break;
        // A gradient that this rank used gets the result. A gradient that it did not use depends on
        // the others.
        const Role role = parts_.gradients[tensor.param].now.role;
        if (waits_for_answer(tensor.param))
            parts_.observers.unused->postpone(tensor);
        else
            settle(bucket, tensor,
                   role == Role::kExpected || (role == Role::kAbsentHere && !keeps_unused));
    }
    parts_.gradients.at(bucket, [&bucket](auto& side) { side.deliver(bucket); });
    if (callback_.fn) report(bucket);
}

void Results::clear_results(const ddp_bucket& bucket) {
    for (const auto& tensor : bucket.tensors) {
        const ParamState& s = parts_.gradients[tensor.param];
        if (s.now.role == Role::kAbsent)
            parts_.gradients.at(s, [&](auto& side) { side.give_back(bucket, tensor, s); });
        else
            clear(bucket, s, tensor.param);
    }
}

// All ranks skip the step. What this rank did not use becomes again what it was.
void Results::drop(const ddp_bucket& bucket) {
    for (const auto& tensor : bucket.tensors) {
        const ParamState& s = parts_.gradients[tensor.param];
        if (s.sparse)
            parts_.gradients.rows().forget_result(tensor.param);
        else if (s.now.role != Role::kExpected || waits_for_answer(tensor.param))
            parts_.gradients.on_host().give_back(bucket, tensor, s);
        else
            clear(bucket, s, tensor.param);
    }
}

// Zeros for what was reduced where the program sees it. Others have put infinities there, perhaps.
void Results::clear(const ddp_bucket& bucket, const ParamState& s, std::int32_t param) {
    const Param& p = parts_.model.table[param];
    const bool seen = !s.sparse && (!p.grad || p.in_place.asked);
    if (seen && s.now.role != Role::kAbsent && s.now.role != Role::kIgnored)
        parts_.gradients.at(s, [&](auto& side) { side.clear_home(bucket, s); });
}

bool Results::waits_for_answer(std::int32_t param) const {
    const Unused* const unused = parts_.discovering();
    return unused && unused->waits_for_answer(param, parts_.gradients[param].now.role);
}

void Results::settle(const ddp_bucket& bucket, const BucketTensor& tensor, bool wanted) {
    const ParamState& s = parts_.gradients[tensor.param];
    if (s.sparse) return;  // ddp_sparse_gradient has the result
    parts_.gradients.at(s, [&](auto& side) {
        wanted ? side.take_result(bucket, tensor, s) : side.give_back(bucket, tensor, s);
    });
    if (wanted && parts_.observers.unused) parts_.observers.unused->on_result(tensor.param);
    if (parts_.observers.check) parts_.observers.check->on_result(tensor.param, s);
}

void Results::finish_unused() {
    Unused* const unused = parts_.discovering();
    if (!unused) return;
    unused->wait();
    const auto decided = unused->take_postponed();
    const bool keeps = parts_.model.options.reducer.keep_local_unused;
    for (const auto& tensor : decided)
        settle(parts_.queue.wait(static_cast<std::size_t>(parts_.gradients[tensor.param].bucket)),
               tensor, unused->used_anywhere(tensor.param) && !keeps);
    if (callback_.fn) finish_devices();
    for (const auto& tensor : decided) call_back(tensor.param, unused->used_anywhere(tensor.param));
}

// The gradients of this bucket that are final.
void Results::report(const ddp_bucket& bucket) {
    parts_.gradients.at(
        bucket, [this](auto& side) { side.finish(*parts_.group, parts_.step->number, enqueue_); });
    if (!parts_.step->has_results()) return;
    for (const auto& tensor : bucket.tensors) {
        const Role role = parts_.gradients[tensor.param].now.role;
        if (!waits_for_answer(tensor.param))
            call_back(tensor.param, role == Role::kExpected || role == Role::kAbsentHere);
    }
}

void Results::call_back(std::int32_t param, bool used) {
    if (!callback_.fn) return;
    parts_.count_result();
    ddp_error* error = nullptr;
    const ddp_status status = callback_.fn(callback_.user_data.get(), param, used ? 1 : 0, &error);
    if (status == DDP_OK) return;
    ErrorInfo info = take_user_error(status, error, "the reduced callback");
    if (info.param < 0) info.param = param;
    throw Error(parts_.queue.break_with(std::move(info),
                                        static_cast<std::size_t>(parts_.gradients[param].bucket)));
}

void Results::end_local_step() {
    parts_.recorder.write({record::EventKind::kStepEnd, parts_.step->number});
    ++parts_.totals.steps;
    parts_.totals.clock.reset();
    parts_.gradients.on_devices().end_local_step();
    parts_.participation.end_skipping();
    parts_.end_step();
}

// Plans and roles learn from the step. A step that all ranks discard teaches nothing; one that this
// rank only shadows is as good as the others'.
void Results::end_synced_step() {
    const Step& step = *parts_.step;
    Totals& totals = parts_.totals;
    if (parts_.observers.votes)
        parts_.observers.votes->end(*parts_.group, step, parts_.queue.step_tag(Purpose::kVotes));
    const Unused* const unused = parts_.discovering();
    if (!step.discarded() && !step.skipped) parts_.count_result();
    const bool updated = parts_.observers.publisher && parts_.observers.publisher->updates();
    totals.means = !step.has_results() || step.skipped ? Means::kSkipped
                   : updated                           ? Means::kPublished
                                                       : Means::kThere;
    if (!step.discarded()) parts_.hook.ran(step.agreement);
    totals.unsent_buckets = 0;
    for (std::size_t b = 0; b < parts_.layout->size(); ++b)
        totals.unsent_buckets += parts_.queue.sent(b) ? 0 : 1;
    for (std::int32_t id = 0; id < parts_.model.table.size(); ++id) {
        ParamState& s = parts_.gradients[id];
        totals.used[static_cast<std::size_t>(id)] = used_anywhere(parts_, id);
        s.waits_for_sync.store(false, std::memory_order_relaxed);
    }
    parts_.queue.tell_travel(totals.clock);
    totals.clock.end();
    const bool learns = !step.discarded();
    if (unused && learns && parts_.model.options.reducer.static_graph &&
        !parts_.participation.recorded())
        parts_.participation.record(step.has_results() ? unused->here() : unused->anywhere(),
                                    unused->anywhere());
    parts_.recorder.write({record::EventKind::kStepEnd, step.number, -1, 0, 0, 1});
    ++totals.steps;
    ++totals.synced_steps;
    parts_.planner.step_ended(learns, totals.synced_steps, *parts_.group, *parts_.hook.hook());
    parts_.participation.end_skipping();
    parts_.end_step();
}

}  // namespace libddp
