#include "ddp/norm.h"

#include <cmath>

#include "capi/context.h"
#include "core/norms.h"

using namespace libddp;

namespace {

constexpr std::size_t kMostParams = INT32_MAX;

cpu::NormKind read_kind(double p) {
    if (p == 1) return cpu::NormKind::kMagnitudes;
    if (p == 2) return cpu::NormKind::kSquares;
    if (p == HUGE_VAL) return cpu::NormKind::kLargest;
    fail_call(DDP_ERROR_INVALID_ARGUMENT, "p is ", p, "; it must be 1, 2 or infinity");
}

// Its norms, between steps.
Norms& norms_of(Context& context) {
    const Reducer& reducer = context.committed();
    reducer.require_idle();
    Norms* const norms = reducer.parts().observers.norms;
    if (!norms)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "no norm was asked for; call ddp_track_grad_norm before ddp_commit");
    return *norms;
}

void require_max_norm(double max_norm) {
    if (!(max_norm >= 0))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "max_norm is ", max_norm,
                  "; it must not be negative");
}

}  // namespace

ddp_status ddp_track_grad_norm(ddp_context* context, double p, const ddp_param* params,
                               size_t count, int32_t* norm, ddp_error** error) {
    return guard(error, "ddp_track_grad_norm", [&] {
        Context& c = context_of(context);
        require(norm, "norm");
        TrackedNorm tracked{read_kind(p), !params, {}};
        if (count > 0 || params) {
            require(params, "params");
            if (count == 0 || count > kMostParams)
                fail_call(DDP_ERROR_INVALID_ARGUMENT, "count is ", count,
                          count == 0 ? "; for all parameters give params NULL"
                                     : "; there cannot be so many parameters");
            tracked.params.assign(params, params + count);
        }
        *norm = c.building().track(std::move(tracked));
    });
}

ddp_status ddp_grad_norm(ddp_context* context, int32_t norm, double* value, ddp_error** error) {
    return guard(error, "ddp_grad_norm", [&] {
        Context& c = context_of(context);
        require(value, "value");
        *value = norms_of(c).value(norm);
    });
}

ddp_status ddp_clip_grad_norm(ddp_context* context, int32_t norm, double max_norm, double* value,
                              ddp_error** error) {
    return guard(error, "ddp_clip_grad_norm", [&] {
        Context& c = context_of(context);
        require_max_norm(max_norm);
        const double before = norms_of(c).clip(norm, max_norm);
        if (value) *value = before;
    });
}

ddp_status ddp_clip_factor(ddp_context* context, int32_t norm, double max_norm, double* value,
                           ddp_error** error) {
    return guard(error, "ddp_clip_factor", [&] {
        Context& c = context_of(context);
        require_max_norm(max_norm);
        require(value, "value");
        *value = norms_of(c).clip_factor(norm, max_norm);
    });
}
