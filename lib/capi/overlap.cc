#include "ddp/overlap.h"

#include "capi/context.h"

using namespace libddp;

ddp_status ddp_finalize_async(ddp_context* context, ddp_error** error) {
    return step_call(context, error, "ddp_finalize_async",
                     [](Reducer& r) { r.results().finalize_async(); });
}

ddp_status ddp_wait_param(ddp_context* context, ddp_param param, ddp_error** error) {
    return step_call(context, error, "ddp_wait_param",
                     [&](Reducer& r) { r.results().wait_param(param); });
}

ddp_status ddp_set_reduced_callback(ddp_context* context, ddp_reduced_fn fn, void* user_data,
                                    void (*destroy)(void*), ddp_error** error) {
    return guard(error, "ddp_set_reduced_callback", [&] {
        Context& c = between_steps(context);
        take_over(user_data, destroy, [&](const std::shared_ptr<void>& state) {
            c.set_reduced_callback({fn, state});
        });
    });
}
