#include "ddp/participation.h"

#include <limits>

#include "capi/context.h"
#include "ddp/freeze.h"

using namespace libddp;

namespace {

std::vector<std::int32_t> read_params(const ddp_param* params, size_t count) {
    if (count > std::numeric_limits<std::int32_t>::max())
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "count is ", count,
                  "; there cannot be so many parameters");
    if (count > 0) require(params, "params");
    return {params, params + count};
}

}  // namespace

ddp_status ddp_mark_unused(ddp_context* context, const ddp_param* params, size_t count,
                           ddp_error** error) {
    return guard(error, "ddp_mark_unused", [&] {
        Context& c = context_of(context);
        const auto ids = read_params(params, count);
        c.step_call([&](Reducer& r) { r.arrivals().mark_unused(ids); });
    });
}

ddp_status ddp_param_used(ddp_context* context, ddp_param param, int32_t* used, ddp_error** error) {
    return guard(error, "ddp_param_used", [&] {
        Context& c = context_of(context);
        require(used, "used");
        Reducer& reducer = c.committed();
        c.model().table.require(param);
        reducer.require_idle();
        if (reducer.parts().totals.synced_steps == 0)
            fail_call(DDP_ERROR_INVALID_STATE, "no synced step has ended yet");
        *used = reducer.parts().totals.used[static_cast<std::size_t>(param)] != 0 ? 1 : 0;
    });
}

ddp_status ddp_set_frozen(ddp_context* context, const ddp_param* params, size_t count,
                          int32_t frozen, ddp_error** error) {
    return guard(error, "ddp_set_frozen", [&] {
        Context& c = context_of(context);
        c.set_frozen(read_params(params, count), frozen != 0);
    });
}

ddp_status ddp_skip_params(ddp_context* context, const ddp_param* params, size_t count,
                           int32_t authority, ddp_error** error) {
    return guard(error, "ddp_skip_params", [&] {
        Context& c = context_of(context);
        const bool counts = authority < 0 || authority == c.group()->rank();
        c.committed().skip(counts ? read_params(params, count) : std::vector<std::int32_t>(),
                           authority);
    });
}

int32_t ddp_skipped(const ddp_context* context, ddp_param param) {
    if (!context || param < 0 || param >= context->impl.model().table.size()) return -1;
    const Reducer* reducer = context->impl.reducer();
    return reducer && reducer->parts().participation.skipped(param) ? 1 : 0;
}

ddp_status ddp_set_weight(ddp_context* context, double weight, ddp_error** error) {
    return guard(error, "ddp_set_weight", [&] {
        Context& c = context_of(context);
        c.require_between_steps();
        c.attendance().require_weight(weight);
        if (const Reducer* reducer = c.reducer()) reducer->require_not_begun();
        c.attendance().set_weight(weight);
    });
}

ddp_status ddp_join(ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_join", [&] { context_of(context).join(); });
}
