#include "ddp/overlap.h"

#include "capi/guard.h"
#include "core/context.h"

using namespace libddp;

ddp_status ddp_finalize_async(ddp_context* context, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_finalize_async";
        require(context, call, "context")->impl.step_call(call, [](Reducer& r) { r.finalize_async(); });
    });
}

ddp_status ddp_wait_param(ddp_context* context, ddp_param param, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_wait_param";
        require(context, call, "context")->impl.step_call(call, [&](Reducer& r) { r.wait_param(param, call); });
    });
}

ddp_status ddp_set_reduced_callback(ddp_context* context, ddp_reduced_fn fn, void* user_data, void (*destroy)(void*),
                                    ddp_error** error) {
    return guard(error, [&] {
        Context& c = require(context, "ddp_set_reduced_callback", "context")->impl;
        c.require_between_steps("ddp_set_reduced_callback");
        c.set_reduced_callback({fn, owned(user_data, destroy)});
    });
}
