#include "core/arrivals.h"

#include <algorithm>

#include "core/captured_step.h"
#include "core/number_check.h"
#include "core/publisher.h"
#include "core/step_check.h"
#include "core/unused.h"
#include "util/hot_path.h"
#include "util/process.h"

namespace libddp {
namespace {

// How many missing parameters a message names.
constexpr std::size_t kNamedParams = 8;

}  // namespace

// Where a step stands for a gradient that comes now: idle, or filling, synced or not. Otherwise it
// throws.
Phase Arrivals::look() const {
    if (parts_.group->broken()) parts_.group->check();
    const Phase phase = parts_.phase.load(std::memory_order_acquire);
    if (phase != Phase::kIdle) require_filling(phase);
    return phase;
}

// Begins the step if it has not begun.
Phase Arrivals::begin(Phase phase) {
    if (phase != Phase::kIdle) return phase;
    phase = parts_.begin_step();
    require_filling(phase);
    return phase;
}

// A gradient comes: counts it, and puts it in place if the step needs no more of it. One that must
// not come throws, and begins no step. check: throws for mistakes in the gradient itself. give:
// takes it; the last gradient of a bucket records events for all, so it is given before it is
// counted.
template <class Check, class Give>
void Arrivals::announce(std::int32_t param, ParamState& s, Check check, Give give) {
    const Phase found = look();
    if (s.now.role != Role::kExpected) [[unlikely]] {
        if (s.now.role != Role::kIgnored) refuse(param, s, 0);
        return;
    }
    check();
    if (parts_.observers.publisher) [[unlikely]]
        parts_.observers.publisher->require_asked(parts_, param);
    const Phase phase = begin(found);
    give(phase);
    // The last use takes over what the others have written.
    const std::int32_t before = s.now.calls.fetch_add(1, std::memory_order_acq_rel);
    if (before >= s.uses) refuse(param, s, before);
    if (before + 1 == s.uses) note_announced(param);
    if (phase == Phase::kFillingLocal) {
        s.waits_for_sync.store(true, std::memory_order_relaxed);
        return;
    }
    if (before + 1 < s.uses) return;
    put_in_place(param, s);
    parts_.group->run_callbacks();
}

void Arrivals::require_filling(Phase phase) const {
    if (phase == Phase::kFilling || phase == Phase::kFillingLocal) return;
    parts_.refuse_in_step(
        str("ddp_finalize of step ", parts_.totals.steps,
            phase == Phase::kDraining ? " is running" : " must follow ddp_finalize_async",
            "; announce every gradient before the end of the backward pass"));
}

LIBDDP_HOT_PATH void Arrivals::grad_ready(std::int32_t param) {
    if (param < 0 || param >= count_) parts_.model.table.require(param);
    ParamState& s = states_[param];
    if (s.streams) [[unlikely]] {
        const NoCancellation uncancelled;  // a device may make its callers wait
        return grad_ready_on(param, s.streams->caller());
    }
    announce(
        param, s, [&] { refuse_dense(param, s); }, [&](Phase) { take_dense(param, s); });
}

// stream: what the program works on.
void Arrivals::grad_ready_on(std::int32_t param, void* stream) {
    parts_.model.table.require(param);
    ParamState& s = states_[param];
    // the CPU has no streams
    if (!s.streams) return in_call("ddp_grad_ready", [&] { grad_ready(param); });
    announce(
        param, s,
        [&] {
            refuse_dense(param, s);
            join_graph(parts_, s.streams->stream()->capture(stream));
        },
        [&](Phase phase) {
            take_dense(param, s);
            parts_.gradients.on_devices().come(s, stream, phase == Phase::kFillingLocal);
        });
}

void Arrivals::take_whole(std::int32_t param, const ParamState& s) {
    if (s.now.calls.load(std::memory_order_acquire) < s.uses)
        parts_.gradients.factors().add_whole(param);
}

void Arrivals::put(std::int32_t param, const void* gradient, bool add) {
    parts_.model.table.require(param);
    ParamState& s = states_[param];
    if (s.streams)
        throw CallError(
            {DDP_ERROR_UNSUPPORTED,
             str("'", name(param), "' is on ", device_name(s.streams->device()),
                 ", where only the program knows the stream; give the gradient to ddp_put_on"),
             -1, param});
    take_copy(param, s, gradient, add, nullptr);
}

void Arrivals::put_on(std::int32_t param, const void* gradient, bool add, void* stream) {
    parts_.model.table.require(param);
    ParamState& s = states_[param];
    // the CPU has no streams
    if (!s.streams) return in_call("ddp_put", [&] { put(param, gradient, add); });
    s.streams->stream()->refuse_capture(stream);
    take_copy(param, s, gradient, add, stream);
}

void Arrivals::take_copy(std::int32_t param, ParamState& s, const void* gradient, bool add,
                         void* stream) {
    const auto check = [&] {
        refuse_dense(param, s);
        parts_.gradients.require_copyable(
            param, "gradient", gradient, add,
            "; where the program writes there itself it calls ddp_grad_ready");
        if (s.streams) join_graph(parts_, 0);
    };
    announce(param, s, check, [&](Phase phase) {
        const std::int32_t calls = s.now.calls.load(std::memory_order_acquire);
        if (calls >= s.uses) refuse(param, s, calls);  // its bucket may be on its way
        FactorGradients& factors = parts_.gradients.factors();
        const bool begun = s.factored
                               ? factors.whole(param)
                               : calls > 0 || s.waits_for_sync.load(std::memory_order_relaxed);
        s.given.store(true, std::memory_order_relaxed);
        parts_.gradients.at(s, [&](auto& side) {
            side.copy_given(s, gradient, add && begun, stream);
            side.come(s, stream, phase == Phase::kFillingLocal);
        });
        if (s.factored && !add) factors.discard(param);
        if (s.factored) factors.add_whole(param);
    });
}

void Arrivals::refuse_dense(std::int32_t param, const ParamState& s) const {
    if (s.sparse)
        throw CallError(
            {DDP_ERROR_INVALID_ARGUMENT,
             str("'", name(param), "' is sparse; give its rows to ddp_grad_ready_sparse"), -1,
             param});
}

void Arrivals::grad_ready_sparse(std::int32_t param, const std::int64_t* indices,
                                 const void* values, std::size_t count) {
    parts_.model.table.require(param);
    ParamState& s = states_[param];
    if (!s.sparse)
        throw CallError({DDP_ERROR_INVALID_ARGUMENT,
                         str("'", name(param), "' was not registered with DDP_PARAM_SPARSE"), -1,
                         param});
    SparseGradients& rows = parts_.gradients.rows();
    announce(
        param, s, [&] { rows.require_rows(param, indices, count); },
        [&](Phase) {
            if (s.now.calls.load(std::memory_order_acquire) == 0)
                rows.add(param, indices, values, count);
        });
}

void Arrivals::grad_ready_factors(std::int32_t param, const void* left, const void* right,
                                  std::size_t rows) {
    parts_.model.table.require(param);
    ParamState& s = states_[param];
    if (!s.factored)
        throw CallError({DDP_ERROR_INVALID_ARGUMENT,
                         str("'", name(param), "' was not registered with DDP_PARAM_FACTORED"), -1,
                         param});
    FactorGradients& factors = parts_.gradients.factors();
    announce(
        param, s, [&] { factors.require_rows(param, rows); },
        [&](Phase) {
            if (s.now.calls.load(std::memory_order_acquire) < s.uses)
                factors.add(param, left, right, rows);
        });
}

void Arrivals::refuse(std::int32_t param, const ParamState& s, std::int32_t calls) const {
    const bool expected = s.now.role == Role::kExpected;
    std::string why;
    if (parts_.participation.frozen(param))
        why = "is frozen; thaw it with ddp_set_frozen before the step";
    else if (parts_.participation.skipped(param))
        why = "is skipped in this step (ddp_skip_params)";
    else if (!expected)
        why =
            "was not used in the first synced step, and with DDP_CONTEXT_STATIC_GRAPH the graph "
            "may not change; use DDP_CONTEXT_FIND_UNUSED";
    else if (calls >= Announcement::kClosed)
        why = "was given to ddp_mark_unused before";
    else if (s.uses > 1)
        why = str("was announced more than ", s.uses, " times, which is its `uses`");
    else
        why =
            "was announced twice; announce it once it is complete, and call ddp_finalize at the "
            "end of the backward pass";
    const std::int64_t step = parts_.totals.steps;
    throw CallError({expected ? DDP_ERROR_INVALID_STATE : DDP_ERROR_MISMATCH,
                     str("step ", step, ": the gradient of '", name(param), "' ", why), -1, param,
                     s.bucket, step});
}

// All or none: what is wrong with one of them is found out first.
void Arrivals::mark_unused(const std::vector<std::int32_t>& params) {
    for (auto id : params) parts_.model.table.require(id);
    if (!parts_.discovering())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the context does not look for unused parameters; create it with "
                  "DDP_CONTEXT_FIND_UNUSED");
    Phase phase = look();
    if (phase == Phase::kFilling)
        for (auto id : params)
            require_unannounced(id, states_[id].now.calls.load(std::memory_order_acquire));
    if (params.empty()) return;
    phase = begin(phase);
    if (phase == Phase::kFillingLocal) return;
    for (auto id : params) mark_unused(id);
    parts_.group->run_callbacks();
}

void Arrivals::require_unannounced(std::int32_t param, std::int32_t calls) const {
    if (calls == 0 || calls >= Announcement::kClosed) return;
    const std::int64_t step = parts_.totals.steps;
    throw CallError(
        {DDP_ERROR_INVALID_STATE,
         str("the gradient of '", name(param), "' was announced already in step ", step), -1, param,
         states_[param].bucket, step});
}

// A second time changes nothing.
void Arrivals::mark_unused(std::int32_t param) {
    ParamState& s = states_[param];
    if (s.now.role != Role::kExpected) return;
    std::int32_t none = 0;
    if (!s.now.calls.compare_exchange_strong(none, Announcement::kClosed,
                                             std::memory_order_acq_rel))
        return require_unannounced(param, none);
    note_announced(param);
    parts_.gradients.at(s, [&](auto& side) { side.come(s, side.caller(s), false); });
    if (s.waits_for_sync.load(std::memory_order_relaxed))
        put_in_place(param, s);  // earlier local steps used it
    else
        put_unused(param, s);
}

void Arrivals::put_in_place(std::int32_t param, ParamState& s) {
    parts_.planner.note(param);
    const bool dense = parts_.gradients.dense(param, s);
    if (dense && parts_.observers.check) parts_.observers.check->announce(param, s.grad);
    if (parts_.observers.numbers) [[unlikely]] {
        if (!parts_.observers.numbers->fill(parts_.gradients, param, dense, *parts_.step,
                                            *parts_.group))
            return put_zeros(param, s, false);
    } else if (dense) {
        parts_.gradients.at(
            s, [&](auto& side) { side.fill(param, s, Gradients::scale(s, *parts_.step)); });
    }
    parts_.queue.gradient_in_place(s.bucket);
}

// keep: a view's contents may have to come back, if no rank used it.
void Arrivals::put_zeros(std::int32_t param, ParamState& s, bool keep) {
    if (!s.sparse)
        parts_.gradients.at(s, [&](auto& side) { side.fill_with_zeros(param, s, keep); });
    parts_.gradients.forget_given(param);
    parts_.queue.gradient_absent(s.bucket, param);
}

// For a gradient that this rank does not use in this step: zeros, or what the program has
// accumulated there.
void Arrivals::put_unused(std::int32_t param, ParamState& s) {
    if (!parts_.gradients.counts_unused(s, *parts_.step)) {
        const bool looks =
            !s.sparse && !s.factored && !s.streams && !s.given.load(std::memory_order_relaxed);
        if (looks)
            parts_.observers.unused->warn_of_leftover(param, s, parts_.group->rank(),
                                                      parts_.step->number);
        return put_zeros(param, s, true);
    }
    parts_.gradients.at(s, [&](auto& side) { side.keep(param, s); });
    if (parts_.observers.numbers) [[unlikely]] {
        if (!parts_.observers.numbers->fill(parts_.gradients, param, true, *parts_.step,
                                            *parts_.group))
            return put_zeros(param, s, false);
    } else {
        parts_.gradients.at(
            s, [&](auto& side) { side.fill_unused(param, s, Gradients::scale(s, *parts_.step)); });
    }
    parts_.queue.gradient_absent(s.bucket, param);
}

void Arrivals::close() {
    const Step& step = *parts_.step;
    Unused* const unused = parts_.discovering();
    if (step.has_results() && !unused) require_complete();
    for (std::int32_t id = 0; id < count_; ++id) {
        ParamState& s = states_[id];
        if (s.now.role != Role::kExpected) continue;
        const bool waits = s.waits_for_sync.load(std::memory_order_relaxed);
        const std::int32_t calls = s.now.calls.load(std::memory_order_acquire);
        if (unused && (waits || (calls > 0 && calls < Announcement::kClosed))) unused->mark(id);
        if (calls >= s.uses) continue;
        s.now.calls.store(Announcement::kClosed, std::memory_order_release);
        if (!step.has_results())
            put_zeros(id, s, false);
        else
            waits || calls > 0 ? put_in_place(id, s) : put_unused(id, s);
    }
}

void Arrivals::require_complete() const {
    std::vector<std::int32_t> missing;
    for (std::int32_t id = 0; id < count_; ++id) {
        const ParamState& s = states_[id];
        if (s.now.role == Role::kExpected && s.now.calls.load(std::memory_order_acquire) < s.uses &&
            !s.waits_for_sync.load(std::memory_order_relaxed))
            missing.push_back(id);
    }
    if (!missing.empty()) report_missing(missing);
}

void Arrivals::report_missing(const std::vector<std::int32_t>& missing) const {
    std::string names;
    const bool never_announced = std::all_of(
        missing.begin(), missing.end(), [&](auto id) { return states_[id].now.calls.load() == 0; });
    for (std::size_t i = 0; i < missing.size() && i < kNamedParams; ++i) {
        const ParamState& s = states_[missing[i]];
        names += str(i ? ", '" : "'", name(missing[i]), "'");
        if (s.uses > 1) names += str(" (", s.now.calls.load(), " of ", s.uses, " times)");
    }
    if (missing.size() > kNamedParams)
        names += str(" and ", missing.size() - kNamedParams, " more");
    const char* advice =
        parts_.model.options.reducer.static_graph
            ? "; they were used in the first synced step, and with DDP_CONTEXT_STATIC_GRAPH the "
              "graph may not change"
        : never_announced
            ? "; freeze parameters that are not trained (ddp_set_frozen), and if a step may use "
              "some parameters only, create the context with DDP_CONTEXT_FIND_UNUSED"
            : "";
    const std::int64_t step = parts_.totals.steps;
    ErrorInfo error{
        DDP_ERROR_MISSING_GRADIENT,
        str("ddp_finalize on rank ", parts_.group->rank(), ", step ", step, ": ", missing.size(),
            " of ", count_, missing.size() == 1 ? " gradients was" : " gradients were",
            " never announced with ddp_grad_ready: ", names, advice),
        parts_.group->rank(),
        missing.front(),
        states_[missing.front()].bucket,
        step};
    throw Error(parts_.group->break_everywhere(error));
}

}  // namespace libddp
