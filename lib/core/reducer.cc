#include "core/reducer.h"

#include <algorithm>
#include <optional>

#include "kernels/dtype.h"
#include "util/hot_path.h"
#include "util/log.h"
#include "util/process.h"

namespace libddp {

void Reducer::begin(double factor, bool sync) {
    begun_sync_ = sync;
    factor_ = factor;
    begun_ = options_.needs_begin;
}

// Where a step stands for a gradient that comes now: idle, or filling, synced or not. Otherwise it throws.
Reducer::Phase Reducer::look() const {
    if (group_->broken()) group_->check();
    const Phase phase = phase_.load(std::memory_order_acquire);
    if (phase != Phase::kIdle) require_filling(phase);
    return phase;
}

// Begins the step if this is its first gradient. What is wrong with the gradient itself is found out between look() and
// this: a gradient that is refused begins no step.
Reducer::Phase Reducer::enter(Phase phase) {
    if (phase != Phase::kIdle) return phase;
    phase = begin_phase();
    require_filling(phase);
    return phase;
}

void Reducer::require_filling(Phase phase) const {
    if (phase == Phase::kFilling || phase == Phase::kFillingLocal) return;
    fail_call(DDP_ERROR_INVALID_STATE, "ddp_finalize of step ", steps_,
              phase == Phase::kDraining ? " is running" : " must follow ddp_finalize_async",
              "; announce every gradient before the end of the backward pass");
}

// The first gradient of a step decides whether the step communicates.
Reducer::Phase Reducer::begin_phase() {
    if (options_.needs_begin && !begun_)
        fail_call(DDP_ERROR_INVALID_STATE, "step ", steps_,
                  " has not begun; with DDP_CONTEXT_JOIN or DDP_REDUCTION_WEIGHTED_MEAN every step starts with "
                  "ddp_step_begin");
    Phase expected = Phase::kIdle;
    const Phase wanted = (begun_ ? begun_sync_ : sync_) ? Phase::kFilling : Phase::kFillingLocal;
    if (!phase_.compare_exchange_strong(expected, wanted, std::memory_order_acq_rel)) return expected;
    clock_.first_gradient();
    recorder_.write({record::EventKind::kStepBegin, steps_, -1, 0, 0, wanted == Phase::kFilling});
    return wanted;
}

LIBDDP_HOT_PATH void Reducer::grad_ready(std::int32_t param) {
    if (param < 0 || param >= table_.size()) table_.require(param);
    ParamState& s = states_.data()[param];      // operator[] would compare it once more
    std::optional<NoCancellation> uncancelled;  // a device may make its callers wait
    if (s.streams) uncancelled.emplace();
    at(s, [&](auto& side) { announce(side, param, s, side.caller(s)); });
}

void Reducer::grad_ready_on(std::int32_t param, void* stream) {
    table_.require(param);
    ParamState& s = state(param);
    if (!s.streams) return in_call("ddp_grad_ready", [&] { grad_ready(param); });  // the CPU has no streams
    announce(on_devices_, param, s, stream);
}

// from: the stream that the program works on, for gradients on a device.
template <class Side>
void Reducer::announce(Side& side, std::int32_t param, ParamState& s, void* from) {
    const Phase phase = look();
    if (!expects(param, s)) return;
    if (s.sparse)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", name(param), "' is sparse; give its rows to ddp_grad_ready_sparse");
    side.refuse_capture(s, from);
    const Phase entered = enter(phase);
    if (s.factored && s.calls.load(std::memory_order_acquire) < s.uses) factors_.add_whole(param);
    s.given.store(false, std::memory_order_relaxed);
    // Noted before it is counted: the last gradient of a bucket records events for all.
    side.come(s, from, entered == Phase::kFillingLocal);
    take(param, s, entered);
}

void Reducer::put(std::int32_t param, const void* gradient, bool add) {
    table_.require(param);
    ParamState& s = state(param);
    const Phase phase = look();
    if (!expects(param, s)) return;
    if (s.sparse)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", name(param), "' is sparse; give its rows to ddp_grad_ready_sparse");
    at(s, [&](auto& side) { side.require_copyable(param, s, gradient, add); });
    const Phase entered = enter(phase);
    const std::int32_t calls = s.calls.load(std::memory_order_acquire);
    if (calls >= s.uses) refuse(param, s, calls);  // its bucket may be on its way
    const bool begun =
        s.factored ? factors_.whole(param) : calls > 0 || s.waits_for_sync.load(std::memory_order_relaxed);
    s.given.store(true, std::memory_order_relaxed);
    on_host_.copy_given(s, gradient, add && begun);
    if (s.factored && !add) factors_.discard(param);
    if (s.factored) factors_.add_whole(param);
    take(param, s, entered);
}

void Reducer::grad_ready_sparse(std::int32_t param, const std::int64_t* indices, const void* values,
                                std::size_t count) {
    table_.require(param);
    if (!state(param).sparse)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", name(param), "' was not registered with DDP_PARAM_SPARSE");
    Phase phase = look();
    ParamState& s = state(param);
    if (!expects(param, s)) return;
    sparse_.require_rows(param, indices, count);
    phase = enter(phase);
    if (s.calls.load(std::memory_order_acquire) == 0) sparse_.add(param, indices, values, count);
    take(param, s, phase);
}

void Reducer::grad_ready_factors(std::int32_t param, const void* left, const void* right, std::size_t rows) {
    table_.require(param);
    if (!state(param).factored)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", name(param), "' was not registered with DDP_PARAM_FACTORED");
    Phase phase = look();
    ParamState& s = state(param);
    if (!expects(param, s)) return;
    factors_.require_rows(param, rows);
    phase = enter(phase);
    if (s.calls.load(std::memory_order_acquire) < s.uses) factors_.add(param, left, right, rows);
    take(param, s, phase);
}

// False: there is nothing to do. A gradient that must not come throws.
bool Reducer::expects(std::int32_t param, const ParamState& s) const {
    if (s.role != Role::kExpected && s.role != Role::kIgnored) refuse(param, s, 0);
    return s.role == Role::kExpected;
}

LIBDDP_HOT_PATH void Reducer::take(std::int32_t param, ParamState& s, Phase phase) {
    const std::int32_t before = s.calls.fetch_add(1, std::memory_order_acq_rel);
    if (before >= s.uses) refuse(param, s, before);
    if (before + 1 == s.uses) note_announced(param);
    if (phase == Phase::kFillingLocal) {
        s.waits_for_sync.store(true, std::memory_order_relaxed);
        return;
    }
    if (before + 1 < s.uses) return;
    put_in_place(param, s);
    group_->run_callbacks();
}

void Reducer::refuse(std::int32_t param, const ParamState& s, std::int32_t calls) const {
    std::string why;
    if (participation_.frozen(param))
        why = "is frozen; thaw it with ddp_set_frozen before the step";
    else if (participation_.skipped(param))
        why = "is skipped in this step (ddp_skip_params)";
    else if (s.role != Role::kExpected)
        why =
            "was not used in the first synced step, and with DDP_CONTEXT_STATIC_GRAPH the graph may not change; use "
            "DDP_CONTEXT_FIND_UNUSED";
    else if (calls >= kClosed)
        why = "was given to ddp_mark_unused before";
    else if (s.uses > 1)
        why = str("was announced more than ", s.uses, " times, which is its `uses`");
    else
        why =
            "was announced twice; announce it once it is complete, and call ddp_finalize at the end of the backward "
            "pass";
    throw CallError({s.role == Role::kExpected ? DDP_ERROR_INVALID_STATE : DDP_ERROR_MISMATCH,
                     str("step ", steps_, ": the gradient of '", name(param), "' ", why), -1, param, s.bucket, steps_});
}

// All or none: what is wrong with one of them is found out first.
void Reducer::mark_unused(const std::vector<std::int32_t>& params) {
    for (auto id : params) table_.require(id);
    if (!discovering())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the context does not look for unused parameters; create it with DDP_CONTEXT_FIND_UNUSED");
    Phase phase = look();
    if (phase == Phase::kFilling)
        for (auto id : params) require_unannounced(id, state(id).calls.load(std::memory_order_acquire));
    if (params.empty()) return;
    phase = enter(phase);
    if (phase == Phase::kFillingLocal) return;
    for (auto id : params) mark_unused(id);
    group_->run_callbacks();
}

void Reducer::require_unannounced(std::int32_t param, std::int32_t calls) const {
    if (calls == 0 || calls >= kClosed) return;
    throw CallError({DDP_ERROR_INVALID_STATE,
                     str("the gradient of '", name(param), "' was announced already in step ", steps_), -1, param,
                     states_[static_cast<std::size_t>(param)].bucket, steps_});
}

// A second time changes nothing.
void Reducer::mark_unused(std::int32_t param) {
    ParamState& s = state(param);
    if (s.role != Role::kExpected) return;
    std::int32_t none = 0;
    if (!s.calls.compare_exchange_strong(none, kClosed, std::memory_order_acq_rel))
        return require_unannounced(param, none);
    note_announced(param);
    at(s, [&](auto& side) { side.come(s, side.caller(s), false); });
    if (s.waits_for_sync.load(std::memory_order_relaxed))
        put_in_place(param, s);  // earlier local steps used it
    else
        put_unused(param, s);
}

void Reducer::put_in_place(std::int32_t param, ParamState& s) {
    if (order_.recording()) order_.note(param);
    const bool dense = !s.sparse && (!s.factored || factors_.whole(param));
    if (dense && check_) check_->announce(param, s.grad);
    if (numbers_) [[unlikely]] {
        if (!put_finite(param, s, dense)) return put_zeros(param, s, false);
    } else if (dense) {
        at(s, [&](auto& side) { side.fill(param, s, fill_scale(s)); });
    }
    queue_.gradient_in_place(s.bucket);
}

// Integers have no factor. The link divides the sum of all ranks.
double Reducer::fill_scale(const ParamState& s) const {
    return is_floating(s.dtype) ? factor_ : 1;
}

// Before the others can get any of it. False: all ranks will skip the step, and may not get it.
bool Reducer::put_finite(std::int32_t param, const ParamState& s, bool dense) {
    std::optional<BadNumber> bad;
    if (dense) bad = numbers_->of_gradient(param, s.place, on_host_.fill_checked(s, fill_scale(s)));
    if (s.sparse) bad = numbers_->in_rows(param, sparse_.given(param), BadNumber::kGradient);
    if (s.factored && !bad) bad = numbers_->in_factors(param, factors_);
    if (!bad || (factor_ == 0 && is_floating(s.dtype))) return true;
    if (!numbers_->skips()) throw Error(group_->break_everywhere(numbers_->error(*bad, group_->rank(), steps_)));
    numbers_->note(*bad);
    return false;
}

// keep: a view's contents may have to come back, if no rank used it.
void Reducer::put_zeros(std::int32_t param, ParamState& s, bool keep) {
    if (!s.sparse) at(s, [&](auto& side) { side.fill_with_zeros(param, s, keep); });
    forget_given(param);
    queue_.gradient_absent(s.bucket, param);
}

// A program that adds to gradients, and does not zero them before this step, has the mean of earlier steps there. The mean
// of the sums has it whole only if ranks without a new gradient count with it, too.
bool Reducer::counts_unused(const ParamState& s) const {
    return options_.accumulate && !s.sparse && !s.factored && !discarding_ && !s.given.load(std::memory_order_relaxed);
}

// Perhaps the program adds to its gradients, and has not said so.
void Reducer::warn_of_leftover(std::int32_t param, const ParamState& s) {
    if (warned_of_leftover_ || options_.accumulate || !options_.mean || !s.has_result || s.streams || s.factored ||
        s.given.load(std::memory_order_relaxed))
        return;
    const auto* memory = static_cast<const std::byte*>(s.grad ? s.grad : s.place);
    if (std::all_of(memory, memory + s.bytes, [](std::byte b) { return b == std::byte{0}; })) return;
    warned_of_leftover_ = true;
    log(LogLevel::kWarn, "rank ", group_->rank(), ", step ", steps_, ": the gradient of '", name(param),
        "' is unused on this rank, so it counts as zero, although it holds the mean of an earlier step. If the program "
        "adds to gradients over several synced steps, create the context with the option accumulate "
        "(DDP_CONTEXT_ACCUMULATE in C); otherwise set them to zero to silence this");
}

// For a gradient that this rank does not use in this step: zeros, or what the program has accumulated there.
void Reducer::put_unused(std::int32_t param, ParamState& s) {
    if (!counts_unused(s)) {
        if (!s.sparse) warn_of_leftover(param, s);
        return put_zeros(param, s, true);
    }
    at(s, [&](auto& side) { side.keep(param, s); });
    if (numbers_) [[unlikely]] {
        if (!put_finite(param, s, true)) return put_zeros(param, s, false);
    } else {
        at(s, [&](auto& side) { side.fill_unused(param, s, fill_scale(s)); });
    }
    queue_.gradient_absent(s.bucket, param);
}

void Reducer::complete_bucket(const ddp_bucket& bucket, const Hook::Target& target) {
    at(bucket, [&](auto& side) {
        for (const auto& tensor : bucket.tensors) {
            const ParamState& s = state(tensor.param);
            if (s.role == Role::kExpected || s.sparse) continue;
            const bool counts = s.role == Role::kAbsentHere && counts_unused(s);
            side.fill_absent(tensor.param, s, counts, fill_scale(s));
        }
        side.pack(bucket, target, is_floating(bucket.dtype) ? factor_ : 1);
    });
}

WorkPtr Reducer::reduce_alone(Group& group, std::int32_t param, const OpTag& tag) {
    const double factor = is_floating(table_[param].dtype) ? factor_ : 1.0;
    if (table_[param].sparse) return sparse_.launch(group, param, factor, options_.mean, tag);
    return factors_.launch(group, param, state(param).place, factor, options_.mean, tag);
}

}  // namespace libddp
