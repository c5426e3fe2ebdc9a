// Draining: every gradient is accounted for, buckets finish one after another, results go back.
#include <algorithm>
#include <utility>

#include "comm/link.h"
#include "core/reducer.h"
#include "util/error.h"

namespace libddp {
namespace {

// How many missing parameters a message names.
constexpr std::size_t kNamedParams = 8;

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

// Who waits for devices as long as the scope lasts: callers' streams, or the host.
class Enqueueing {
public:
    Enqueueing(bool& enqueue, bool value) : enqueue_(enqueue), before_(std::exchange(enqueue, value)) {}
    ~Enqueueing() { enqueue_ = before_; }
    Enqueueing(const Enqueueing&) = delete;
    Enqueueing& operator=(const Enqueueing&) = delete;

private:
    bool& enqueue_;
    const bool before_;
};

}  // namespace

void Reducer::finalize() {
    group_->check();
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase != Phase::kClosing && phase != Phase::kClosingLocal)
        in_call("ddp_finalize", [this] { start_draining(); });
    if (phase_.load(std::memory_order_acquire) == Phase::kClosingLocal) return end_local_step();
    phase_.store(Phase::kDraining, std::memory_order_release);
    {
        const Waiting waiting(clock_);
        drain_until(store_->size());
        finish_unused();
        streams_.gather();
        finish_devices();
        end_check();
    }
    const std::optional<ErrorInfo> skipped = skipping() && !shadowing_ ? numbers_->verdict() : std::nullopt;
    end_synced_step();
    if (skipped) throw CallError(*skipped);
}

void Reducer::finalize_enqueue() {
    streams_.refuse_capture();
    const Enqueueing scope(enqueue_, true);
    finalize();
}

void Reducer::finish_devices() {
    on_devices_.finish(*group_, steps_, enqueue_);
}

void Reducer::finalize_async() {
    group_->check();
    start_draining();
}

// Wherever it is called, the host waits.
void Reducer::wait_param(std::int32_t param) {
    const Enqueueing scope(enqueue_, false);
    wait_until_final(param);
}

void Reducer::wait_param_on(std::int32_t param, void* stream) {
    table_.require(param);
    DeviceStreams* streams = state(param).streams;
    if (!streams) return wait_param(param);
    const CallerScope caller(streams, stream);
    streams_.refuse_capture();
    const Enqueueing scope(enqueue_, true);
    wait_until_final(param);
}

void Reducer::wait_until_final(std::int32_t param) {
    table_.require(param);
    group_->check();
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kClosingLocal) return;
    if (phase != Phase::kClosing)
        fail_call(DDP_ERROR_INVALID_STATE, "call it between ddp_finalize_async and ddp_finalize");
    const ParamState& s = state(param);
    if (s.bucket < 0) return;
    const Waiting waiting(clock_);
    drain_until(static_cast<std::size_t>(s.bucket) + 1);
    if (skipping()) throw CallError(*numbers_->verdict());
    at(s, [this](auto& side) { side.finish(*group_, steps_, enqueue_); });
    const bool undecided = std::any_of(undecided_.begin(), undecided_.end(),
                                       [param](const BucketTensor& tensor) { return tensor.param == param; });
    // The answer who used it comes after the last bucket.
    if (undecided) {
        drain_until(store_->size());
        finish_unused();
        at(s, [this](auto& side) { side.finish(*group_, steps_, enqueue_); });
    }
    count_result();
}

void Reducer::discard() {
    group_->check();
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kClosing || phase == Phase::kClosingLocal)
        fail_call(DDP_ERROR_INVALID_STATE, "ddp_finalize must follow ddp_finalize_async of step ", steps_);
    if (phase == Phase::kIdle) begin_phase();  // where it throws nothing is discarded
    discarding_ = true;
    start_draining();
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        state(id).waits_for_sync.store(false, std::memory_order_relaxed);
        forget_given(id);
    }
    if (phase_.load(std::memory_order_acquire) == Phase::kClosingLocal) return end_local_step();
    phase_.store(Phase::kDraining, std::memory_order_release);
    drain_until(store_->size());
    streams_.gather();
    finish_devices();
    // A rank that finalized meets this message in its next step.
    std::uint8_t agreed = 0;
    group_->run({DDP_COLLECTIVE_ALLREDUCE, nullptr, &agreed, 1, DDP_U8, DDP_MAX}, queue_.step_tag(Purpose::kDiscard));
    end_synced_step();
}

void Reducer::shadow() {
    discarding_ = shadowing_ = true;
    finalize();
}

// Up to here a step can be told to be wrong without a wait. Afterwards all of its operations are under way.
void Reducer::start_draining() {
    // What is not announced in this step comes after the callers' streams as they are now.
    streams_.follow_callers();
    Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kIdle) phase = begin_phase();
    const bool local = phase == Phase::kFillingLocal;
    if ((!local && phase != Phase::kFilling) ||
        !phase_.compare_exchange_strong(phase, local ? Phase::kClosingLocal : Phase::kClosing,
                                        std::memory_order_acq_rel))
        fail_call(DDP_ERROR_INVALID_STATE, "the end of step ", steps_, " has been called before");
    const Waiting waiting(clock_);
    clock_.draining();
    recorder_.write({record::EventKind::kBackwardEnd, steps_});
    drained_ = 0;
    undecided_.clear();
    if (local) return;
    collect_accumulated();
    queue_.launch_ready();
    ask_who_used();
    start_comparison();
}

// Gradients that were announced in local steps only are complete now; any other that is not ready never will be.
void Reducer::collect_accumulated() {
    const bool zeros = discarding_ || discovering();
    std::vector<std::int32_t> missing;
    auto complete = [](const ParamState& s) { return s.calls.load(std::memory_order_acquire) >= s.uses; };
    if (!zeros)
        for (std::int32_t id = 0; id < table_.size(); ++id) {
            const ParamState& s = state(id);
            if (s.role == Role::kExpected && !complete(s) && !s.waits_for_sync.load(std::memory_order_relaxed))
                missing.push_back(id);
        }
    if (!missing.empty()) report_missing(missing);
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        ParamState& s = state(id);
        if (s.role != Role::kExpected) continue;
        const bool waits = s.waits_for_sync.load(std::memory_order_relaxed);
        const std::int32_t calls = s.calls.load(std::memory_order_acquire);
        if (waits || (calls > 0 && calls < kClosed)) used_map_.mark(id);
        if (calls >= s.uses) continue;
        s.calls.store(kClosed, std::memory_order_release);
        if ((waits || calls > 0) && !discarding_)
            put_in_place(id, s);
        else
            discarding_ ? put_zeros(id, s, false) : put_unused(id, s);
    }
}

void Reducer::report_missing(const std::vector<std::int32_t>& missing) {
    std::string names;
    const bool never_announced =
        std::all_of(missing.begin(), missing.end(), [&](auto id) { return state(id).calls.load() == 0; });
    for (std::size_t i = 0; i < missing.size() && i < kNamedParams; ++i) {
        const ParamState& s = state(missing[i]);
        names += str(i ? ", '" : "'", name(missing[i]), "'");
        if (s.uses > 1) names += str(" (", s.calls.load(), " of ", s.uses, " times)");
    }
    if (missing.size() > kNamedParams) names += str(" and ", missing.size() - kNamedParams, " more");
    const char* advice = options_.static_graph ? "; they were used in the first synced step, and with "
                                                 "DDP_CONTEXT_STATIC_GRAPH the graph may not change"
                         : never_announced
                             ? "; freeze parameters that are not trained (ddp_set_frozen), and if a step may "
                               "use some parameters only, create the context with DDP_CONTEXT_FIND_UNUSED"
                             : "";
    ErrorInfo error{DDP_ERROR_MISSING_GRADIENT,
                    str("ddp_finalize on rank ", group_->rank(), ", step ", steps_, ": ", missing.size(), " of ",
                        table_.size(), missing.size() == 1 ? " gradients was" : " gradients were",
                        " never announced with ddp_grad_ready: ", names, advice),
                    group_->rank(),
                    missing.front(),
                    state(missing.front()).bucket,
                    steps_};
    throw Error(group_->break_everywhere(error));
}

// After the last bucket, so that it travels while results are written back.
void Reducer::ask_who_used() {
    if (!discovering()) return;
    if (group_->world() == 1) return used_map_.assume_local();
    used_map_.exchange(*group_, queue_.step_tag(Purpose::kUsedMap));
}

void Reducer::drain_until(std::size_t bucket_count) {
    if (numbers_ && numbers_->skips()) agree_to_skip();
    while (drained_ < bucket_count) {
        const ddp_bucket& bucket = queue_.wait(drained_);
        ++drained_;  // before callbacks, which may wait for parameters themselves
        finish_bucket(bucket);
    }
}

// No gradient gets its result before all ranks have found nothing bad: in their own gradients, and in all results.
void Reducer::agree_to_skip() {
    const bool discards = discarding_ && !shadowing_;
    if (discards || numbers_->agreed()) return;
    for (std::size_t b = 0; b < store_->size(); ++b) {
        const ddp_bucket& bucket = queue_.wait(b);
        if (numbers_->any()) continue;
        if (const auto bad = bad_result(bucket)) numbers_->note(*bad);
    }
    numbers_->agree(*group_, steps_, queue_.step_tag(Purpose::kNumbers));
}

std::optional<BadNumber> Reducer::bad_result(const ddp_bucket& bucket) {
    if (!queue_.sent(static_cast<std::size_t>(bucket.index))) return std::nullopt;
    for (const auto& tensor : bucket.tensors) {
        std::optional<BadNumber> bad;
        if (state(tensor.param).sparse)
            bad = numbers_->in_rows(tensor.param, sparse_.reduced(tensor.param), BadNumber::kResult);
        else
            bad = numbers_->in_result(bucket, tensor);
        if (bad) return bad;
    }
    return std::nullopt;
}

void Reducer::finish_bucket(const ddp_bucket& bucket) {
    const auto index = static_cast<std::size_t>(bucket.index);
    const auto& planned = store_->plan().buckets[index];
    if (numbers_ && !numbers_->skips() && !discarding_)
        if (const auto bad = bad_result(bucket))
            throw Error(group_->break_everywhere(numbers_->error(*bad, -1, steps_)));
    if (planned.alone)
        sent_bytes_ += collect(planned.params.front());
    else if (queue_.sent(index))
        sent_bytes_ += planned.content;
    if (check_ && !discarding_) examine(bucket);
    if (skipping()) return drop(bucket);
    for (const auto& tensor : bucket.tensors) {
        if (shadowing_) break;
        const ParamState& s = state(tensor.param);
        if (discarding_) {
            if (s.role == Role::kAbsent)
                at(s, [&](auto& side) { side.give_back(bucket, tensor, s); });
            else
                clear_reduced(bucket, tensor);
            continue;
        }
        const Role role = s.role;
        // A gradient that this rank used gets the result. What happens to one that it did not use depends on the others.
        if (waits_for_answer(tensor.param))
            undecided_.push_back(tensor);
        else
            settle(bucket, tensor,
                   role == Role::kExpected || (role == Role::kAbsentHere && !options_.keep_local_unused));
    }
    at(bucket, [&bucket](auto& side) { side.deliver(bucket); });
    if (!reduced_.fn) return;
    at(bucket, [this](auto& side) { side.finish(*group_, steps_, enqueue_); });
    for (const auto& tensor : bucket.tensors) report_param(tensor);
}

// The step has no result. What this rank did not use becomes again what it was.
void Reducer::drop(const ddp_bucket& bucket) {
    for (const auto& tensor : bucket.tensors) {
        const ParamState& s = state(tensor.param);
        if (s.sparse)
            sparse_.forget_result(tensor.param);
        else if (s.role != Role::kExpected || waits_for_answer(tensor.param))
            on_host_.give_back(bucket, tensor, s);
        else
            clear_reduced(bucket, tensor);
    }
}

// Zeros for what was reduced where the program sees it. Others have put infinities there, perhaps.
void Reducer::clear_reduced(const ddp_bucket& bucket, const BucketTensor& tensor) {
    const ParamState& s = state(tensor.param);
    const Param& p = table_[tensor.param];
    const bool seen = !s.sparse && (!p.grad || p.in_place);
    if (seen && s.role != Role::kAbsent && s.role != Role::kIgnored)
        at(s, [&](auto& side) { side.clear_home(bucket, s); });
}

// What a parameter that is alone in its bucket has become. Returns how many bytes this rank gave for it.
std::uint64_t Reducer::collect(std::int32_t param) {
    return table_[param].sparse ? sparse_.collect(param) : factors_.collect(param);
}

// Rows and factors that were given for this parameter.
void Reducer::forget_given(std::int32_t param) {
    if (table_[param].sparse) sparse_.discard(param);
    if (table_[param].factored) factors_.discard(param);
}

// After settle(), when the gradient is final.
void Reducer::report_param(const BucketTensor& tensor) {
    const ParamState& s = state(tensor.param);
    if (discarding_ || waits_for_answer(tensor.param)) return;
    call_reduced(tensor.param, s.role == Role::kExpected || s.role == Role::kAbsentHere);
}

bool Reducer::waits_for_answer(std::int32_t param) {
    return state(param).role == Role::kExpected && discovering() && !used_map_.here()[static_cast<std::size_t>(param)];
}

void Reducer::settle(const ddp_bucket& bucket, const BucketTensor& tensor, bool wanted) {
    ParamState& s = state(tensor.param);
    if (s.sparse) return;  // ddp_sparse_gradient has the result
    s.has_result = s.has_result || wanted;
    at(s, [&](auto& side) { wanted ? side.take_result(bucket, tensor, s) : side.give_back(bucket, tensor, s); });
    if (check_) check_->remember(tensor.param, s.grad);
}

void Reducer::finish_unused() {
    used_map_.wait();
    const auto undecided = std::move(undecided_);
    undecided_.clear();
    const auto used = [this](const BucketTensor& tensor) {
        return used_map_.anywhere()[static_cast<std::size_t>(tensor.param)] != 0;
    };
    for (const auto& tensor : undecided)
        settle(queue_.wait(static_cast<std::size_t>(state(tensor.param).bucket)), tensor,
               used(tensor) && !options_.keep_local_unused);
    if (reduced_.fn) finish_devices();
    for (const auto& tensor : undecided) call_reduced(tensor.param, used(tensor));
}

void Reducer::call_reduced(std::int32_t param, bool used) {
    if (!reduced_.fn) return;
    count_result();
    ddp_error* error = nullptr;
    const ddp_status status = reduced_.fn(reduced_.user_data.get(), param, used ? 1 : 0, &error);
    if (status == DDP_OK) return;
    ErrorInfo info = take_user_error(status, error, "the reduced callback");
    if (info.param < 0) info.param = param;
    throw Error(queue_.break_with(std::move(info), static_cast<std::size_t>(state(param).bucket)));
}

// Before results overwrite what the program has written.
void Reducer::examine(const ddp_bucket& bucket) {
    for (const auto& tensor : bucket.tensors)
        if (auto error = check_->examine(tensor.param, state(tensor.param).grad, group_->rank(), steps_))
            throw Error(queue_.break_with(std::move(*error), static_cast<std::size_t>(bucket.index)));
}

// Behind the buckets, and before any of their results can have changed a value. A rank without inputs trails behind.
void Reducer::start_comparison() {
    const bool discards = discarding_ && !shadowing_;
    if (!values_ || discards || group_->world() == 1 || !values_->compares_in(synced_steps_)) return;
    if (options_.keep_local_unused || !queue_.hook()->keeps_models_alike()) return;
    values_->start(*group_, !shadowing_, queue_.step_tag(Purpose::kValues));
}

// With a check of the step no rank goes on before all have found nothing: an error that one of them finds is that of this step on
// each. What values are, all find alike.
void Reducer::end_check() {
    if (group_->world() == 1 || (!values_ && !check_)) return;
    const OpTag tag = queue_.step_tag(Purpose::kEndOfCheck);
    if (values_)
        if (const auto error = values_->end(*group_, steps_, tag)) throw Error(group_->break_everywhere(*error));
    if (check_) group_->run({}, tag);
}

void Reducer::end_local_step() {
    accumulates_ = false;
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        ParamState& s = state(id);
        s.calls.store(0, std::memory_order_relaxed);
        accumulates_ = accumulates_ || s.waits_for_sync.load(std::memory_order_relaxed);
    }
    recorder_.write({record::EventKind::kStepEnd, steps_});
    ++steps_;
    clock_.reset();
    on_devices_.end_local_step();
    participation_.end_skipping();
    forget_step();
    arm();
    phase_.store(Phase::kIdle, std::memory_order_release);
}

// What the step has shown about the steps to come. A step that all ranks discard shows nothing; one that this rank only
// shadows is as good as the others'.
void Reducer::learn() {
    if (discarding_ && !shadowing_) {
        if (order_.recording()) order_.start();
        return;
    }
    if (options_.static_graph && !participation_.recorded())
        participation_.record(shadowing_ ? used_map_.anywhere() : used_map_.here(), used_map_.anywhere());
    if (order_.recording()) {
        order_.finish();
        rebuild_due_ = true;
    }
}

void Reducer::count_result() {
    ++results_;
    operations_at_result_ = group_->link(0)->operations_if_all_ended();
}

void Reducer::end_synced_step() {
    const bool discards = discarding_ && !shadowing_;
    if (!discards && !skipping()) count_result();
    unsent_buckets_ = 0;
    for (std::size_t b = 0; b < store_->size(); ++b) unsent_buckets_ += queue_.sent(b) ? 0 : 1;
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        ParamState& s = state(id);
        const auto i = static_cast<std::size_t>(id);
        used_[i] = discovering() && s.role == Role::kExpected
                       ? used_map_.anywhere()[i]
                       : s.role == Role::kExpected || s.role == Role::kAbsentHere;
        s.calls.store(0, std::memory_order_relaxed);
        s.waits_for_sync.store(false, std::memory_order_relaxed);
    }
    accumulates_ = false;
    queue_.tell_travel(clock_);
    clock_.end();
    learn();
    recorder_.write({record::EventKind::kStepEnd, steps_, -1, 0, 0, 1});
    ++steps_;
    ++synced_steps_;
    if (tuning()) {
        tuner_->step_ended(StepClock::Point::clock::now());
        rebuild_due_ = rebuild_due_ || tuner_->due();
    }
    if (options_.rebuild_interval > 0 && synced_steps_ % options_.rebuild_interval == 0) order_.start();
    participation_.end_skipping();
    forget_step();
    arm();
    phase_.store(Phase::kIdle, std::memory_order_release);
}

}  // namespace libddp
