#include "ddp/participation.h"

#include <limits>

#include "capi/guard.h"
#include "core/context.h"

using namespace libddp;

namespace {

Context& context_of(ddp_context* context, const char* call) {
    return require(context, call, "context")->impl;
}

std::vector<std::int32_t> read_params(const ddp_param* params, size_t count, const char* call) {
    if (count > std::numeric_limits<std::int32_t>::max())
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": count is ", count, "; there cannot be so many parameters");
    if (count > 0) require(params, call, "params");
    return {params, params + count};
}

}  // namespace

ddp_status ddp_mark_unused(ddp_context* context, const ddp_param* params, size_t count, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_mark_unused";
        Context& c = context_of(context, call);
        const auto ids = read_params(params, count, call);
        c.step_call(call, [&](Reducer& r) { r.mark_unused(ids); });
    });
}

ddp_status ddp_param_used(ddp_context* context, ddp_param param, int32_t* used, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_param_used";
        Context& c = context_of(context, call);
        require(used, call, "used");
        Reducer& reducer = c.committed(call);
        c.table().require(param, call);
        reducer.require_idle(call);
        if (reducer.synced_steps() == 0) fail(DDP_ERROR_INVALID_STATE, call, ": no synced step has ended yet");
        *used = reducer.used(param) ? 1 : 0;
    });
}

ddp_status ddp_set_frozen(ddp_context* context, const ddp_param* params, size_t count, int32_t frozen,
                          ddp_error** error) {
    return guard(error, [&] {
        Context& c = context_of(context, "ddp_set_frozen");
        c.set_frozen(read_params(params, count, "ddp_set_frozen"), frozen != 0);
    });
}

ddp_status ddp_skip_params(ddp_context* context, const ddp_param* params, size_t count, int32_t authority,
                           ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_skip_params";
        Context& c = context_of(context, call);
        const bool counts = authority < 0 || authority == c.rank();
        c.skip(counts ? read_params(params, count, call) : std::vector<std::int32_t>(), authority);
    });
}

int32_t ddp_skipped(const ddp_context* context, ddp_param param) {
    if (!context || param < 0 || param >= context->impl.table().size()) return -1;
    const Reducer* reducer = context->impl.reducer();
    return reducer && reducer->participation().skipped(param) ? 1 : 0;
}

ddp_status ddp_set_weight(ddp_context* context, double weight, ddp_error** error) {
    return guard(error, [&] { context_of(context, "ddp_set_weight").set_weight(weight); });
}

ddp_status ddp_join(ddp_context* context, ddp_error** error) {
    return guard(error, [&] { context_of(context, "ddp_join").join(); });
}
