#include "ddp/device.h"

#include "capi/context.h"
#include "device/device.h"
#include "hooks/bucket.h"

using namespace libddp;

ddp_status ddp_device_count(ddp_device_kind kind, int32_t* devices, ddp_error** error) {
    return guard(error, "ddp_device_count", [&] {
        require(devices, "devices");
        *devices = device_count(kind);
    });
}

ddp_status ddp_set_stream(ddp_context* context, ddp_device_kind kind, int32_t index, void* stream,
                          ddp_error** error) {
    return guard(error, "ddp_set_stream", [&] {
        context_of(context).set_stream({kind, index}, stream);
    });
}

ddp_status ddp_grad_ready_on(ddp_context* context, ddp_param param, void* stream,
                             ddp_error** error) {
    return step_call(context, error, "ddp_grad_ready_on",
                     [&](Reducer& r) { r.arrivals().grad_ready_on(param, stream); });
}

ddp_status ddp_put_on(ddp_context* context, ddp_param param, const void* gradient, uint32_t flags,
                      void* stream, ddp_error** error) {
    return step_call(context, error, "ddp_put_on", [&](Reducer& r) {
        require_flags(flags, DDP_PUT_ADD);
        r.arrivals().put_on(param, gradient, (flags & DDP_PUT_ADD) != 0, stream);
    });
}

ddp_status ddp_get_on(ddp_context* context, ddp_param param, void* memory, void* stream,
                      ddp_error** error) {
    return guard(error, "ddp_get_on", [&] {
        require_place(context_of(context), param).copy_out(param, memory, stream);
    });
}

ddp_status ddp_finalize_enqueue(ddp_context* context, ddp_error** error) {
    return step_call(context, error, "ddp_finalize_enqueue",
                     [](Reducer& r) { r.results().finalize_enqueue(); });
}

ddp_status ddp_finalize_on(ddp_context* context, void* stream, ddp_error** error) {
    return guard(error, "ddp_finalize_on", [&] {
        Context& c = context_of(context);
        c.committed();
        const auto& devices = c.model().streams.all();
        if (devices.size() > 1)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "the parameters lie on ", devices.size(),
                      " devices; name each one's stream with ddp_set_stream, and call "
                      "ddp_finalize_enqueue");
        const CallerScope scope(devices.empty() ? nullptr : devices.front().get(), stream);
        c.step_call([](Reducer& r) { r.results().finalize_enqueue(); });
    });
}

ddp_status ddp_wait_param_on(ddp_context* context, ddp_param param, void* stream,
                             ddp_error** error) {
    return step_call(context, error, "ddp_wait_param_on",
                     [&](Reducer& r) { r.results().wait_param_on(param, stream); });
}

void* ddp_bucket_stream(const ddp_bucket* bucket) {
    return bucket && bucket->stream ? bucket->stream->handle() : nullptr;
}
