#include "ddp/overlap.h"

#include "capi/guard.h"
#include "core/context.h"

using namespace libddp;

ddp_status ddp_finalize_async(ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_finalize_async", [&] {
        require(context, "context")->impl.step_call([](Reducer& r) { r.results().finalize_async(); });
    });
}

ddp_status ddp_wait_param(ddp_context* context, ddp_param param, ddp_error** error) {
    return guard(error, "ddp_wait_param", [&] {
        require(context, "context")->impl.step_call([&](Reducer& r) { r.results().wait_param(param); });
    });
}

ddp_status ddp_set_reduced_callback(ddp_context* context, ddp_reduced_fn fn, void* user_data, void (*destroy)(void*),
                                    ddp_error** error) {
    return guard(error, "ddp_set_reduced_callback", [&] {
        Context& c = require(context, "context")->impl;
        c.require_between_steps();
        c.set_reduced_callback({fn, owned(user_data, destroy)});
    });
}
