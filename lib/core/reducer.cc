#include "core/reducer.h"

#include <cstring>

#include "device/dtype.h"
#include "device/kernels.h"

namespace libddp {

void Reducer::begin(double factor, bool sync) {
    begun_sync_ = sync;
    factor_ = factor;
    begun_ = options_.needs_begin;
}

// Where a step stands for a gradient that comes now: filling, synced or not. Otherwise it throws.
Reducer::Phase Reducer::enter(const char* call) {
    if (group_->broken()) group_->check();
    Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kIdle) phase = begin_phase(call);
    if (phase == Phase::kFilling || phase == Phase::kFillingLocal) return phase;
    fail(DDP_ERROR_INVALID_STATE, call, ": ddp_finalize of step ", steps_,
         phase == Phase::kDraining ? " is running" : " must follow ddp_finalize_async",
         "; announce every gradient before the end of the backward pass");
}

// The first gradient of a step decides whether the step communicates.
Reducer::Phase Reducer::begin_phase(const char* call) {
    if (options_.needs_begin && !begun_)
        fail(DDP_ERROR_INVALID_STATE, call, ": step ", steps_,
             " has not begun; with DDP_CONTEXT_JOIN or DDP_REDUCTION_WEIGHTED_MEAN every step starts with "
             "ddp_step_begin");
    Phase expected = Phase::kIdle;
    const Phase wanted = (begun_ ? begun_sync_ : sync_) ? Phase::kFilling : Phase::kFillingLocal;
    if (!phase_.compare_exchange_strong(expected, wanted, std::memory_order_acq_rel)) return expected;
    clock_.first_gradient();
    return wanted;
}

void Reducer::grad_ready(std::int32_t param) {
    if (param < 0 || param >= table_.size()) table_.require(param, "ddp_grad_ready");
    const Phase phase = enter("ddp_grad_ready");
    Slot& s = slot(param);
    if (s.sparse && s.role == Role::kExpected)
        fail(DDP_ERROR_INVALID_ARGUMENT, "ddp_grad_ready: '", name(param),
             "' is sparse; give its rows to ddp_grad_ready_sparse");
    take(param, s, phase, "ddp_grad_ready");
}

void Reducer::grad_ready_sparse(std::int32_t param, const std::int64_t* indices, const void* values,
                                std::size_t count) {
    table_.require(param, "ddp_grad_ready_sparse");
    if (!slot(param).sparse)
        fail(DDP_ERROR_INVALID_ARGUMENT, "ddp_grad_ready_sparse: '", name(param),
             "' was not registered with DDP_PARAM_SPARSE");
    const Phase phase = enter("ddp_grad_ready_sparse");
    Slot& s = slot(param);
    if (s.role == Role::kExpected && s.calls.load(std::memory_order_acquire) == 0)
        sparse_.add(param, indices, values, count);
    take(param, s, phase, "ddp_grad_ready_sparse");
}

void Reducer::take(std::int32_t param, Slot& s, Phase phase, const char* call) {
    if (s.role != Role::kExpected) {
        if (s.role == Role::kIgnored) return;
        refuse(param, s, 0, call);
    }
    const std::int32_t before = s.calls.fetch_add(1, std::memory_order_acq_rel);
    if (before >= s.uses) refuse(param, s, before, call);
    if (phase == Phase::kFillingLocal) {
        s.waits_for_sync.store(true, std::memory_order_relaxed);
        return;
    }
    if (before + 1 < s.uses) return;
    put_in_place(param, s);
    group_->executor().run_callbacks();
}

void Reducer::refuse(std::int32_t param, const Slot& s, std::int32_t calls, const char* call) const {
    std::string why;
    if (participation_.frozen(param))
        why = "is frozen; thaw it with ddp_set_frozen before the step";
    else if (participation_.skipped(param))
        why = "is skipped in this step (ddp_skip_params)";
    else if (s.role != Role::kExpected)
        why = "was not used in the first synced step, and with DDP_CONTEXT_STATIC_GRAPH the graph may not change; use "
              "DDP_CONTEXT_FIND_UNUSED";
    else if (calls >= kClosed)
        why = "was given to ddp_mark_unused before";
    else if (s.uses > 1)
        why = str("was announced more than ", s.uses, " times, which is its `uses`");
    else
        why = "was announced twice; announce it once it is complete, and call ddp_finalize at the end of the backward "
              "pass";
    throw Error({s.role == Role::kExpected ? DDP_ERROR_INVALID_STATE : DDP_ERROR_MISMATCH,
                 str(call, ": step ", steps_, ": the gradient of '", name(param), "' ", why), -1, param, s.bucket,
                 steps_});
}

void Reducer::mark_unused(std::int32_t param) {
    table_.require(param, "ddp_mark_unused");
    if (!discovering())
        fail(DDP_ERROR_INVALID_STATE, "ddp_mark_unused: the context does not look for unused parameters; create it with "
                                      "DDP_CONTEXT_FIND_UNUSED");
    const Phase phase = enter("ddp_mark_unused");
    Slot& s = slot(param);
    if (s.role != Role::kExpected || phase == Phase::kFillingLocal) return;
    std::int32_t none = 0;
    if (!s.calls.compare_exchange_strong(none, kClosed, std::memory_order_acq_rel))
        throw Error({DDP_ERROR_INVALID_STATE,
                     str("ddp_mark_unused: the gradient of '", name(param), "' was ",
                         none >= kClosed ? "marked" : "announced", " already in step ", steps_),
                     -1, param, s.bucket, steps_});
    if (s.waits_for_sync.load(std::memory_order_relaxed))
        put_in_place(param, s);  // earlier local steps used it
    else
        put_zeros(param, s, true);
    group_->executor().run_callbacks();
}

void Reducer::put_in_place(std::int32_t param, Slot& s) {
    if (order_.recording()) order_.note(param);
    if (!s.sparse) {
        const double scale = pack_scale(s.dtype);
        if (scale == 0)
            clear(s);  // not 0 * infinity
        else if (s.grad)
            cpu::scale_copy(s.place, s.grad, s.count, s.dtype, scale);
        else if (scale != 1)
            cpu::scale_copy(s.place, s.place, s.count, s.dtype, scale);  // still in this core's cache
    }
    launcher_.gradient_in_place(s.bucket);
}

void Reducer::clear(Slot& s) {
    if (s.bytes > 0) std::memset(s.place, 0, s.bytes);
}

// keep: a view's contents may have to come back, if no rank used it.
void Reducer::put_zeros(std::int32_t param, Slot& s, bool keep) {
    if (!s.sparse) {
        if (keep && !s.grad) kept_.keep(param, s.place, s.bytes);
        clear(s);
    }
    launcher_.gradient_in_place(s.bucket, /*used=*/false);
}

// Integers are never divided beforehand: that would lose everything. The group divides their sum.
double Reducer::pack_scale(ddp_dtype dtype) const {
    if (!is_floating(dtype)) return 1;
    return prescale_ ? factor_ / group_->world() : factor_;
}

void Reducer::complete_with_zeros(const ddp_bucket& bucket) {
    for (const auto& tensor : bucket.tensors) {
        Slot& s = slot(tensor.param);
        if (s.role == Role::kExpected || s.sparse) continue;
        if (!s.grad) kept_.keep(tensor.param, s.place, s.bytes);
        clear(s);
    }
}

WorkPtr Reducer::reduce_sparse(std::int32_t param) {
    return sparse_.launch(*group_, param, is_floating(table_[param].dtype) ? factor_ : 1.0, options_.mean);
}

}  // namespace libddp
