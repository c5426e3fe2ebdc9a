#include "ddp/device.h"

#include <cstdlib>

#include "capi/guard.h"
#include "core/context.h"
#include "device/device.h"
#include "hooks/bucket.h"

using namespace libddp;

ddp_status ddp_device_count(ddp_device_kind kind, int32_t* devices, ddp_error** error) {
    return guard(error, "ddp_device_count", [&] {
        require(devices, "devices");
        *devices = device_count(kind);
    });
}

ddp_status ddp_device_describe(ddp_device_kind kind, int32_t index, char** text, ddp_error** error) {
    return guard(error, "ddp_device_describe", [&] {
        require(text, "text");
        const std::string line = describe_device({kind, index});
        auto* copy = static_cast<char*>(std::malloc(line.size() + 1));
        if (!copy) fail_call(DDP_ERROR_OUT_OF_MEMORY, "no memory for ", line.size(), " bytes");
        std::memcpy(copy, line.c_str(), line.size() + 1);
        *text = copy;
    });
}

ddp_status ddp_set_stream(ddp_context* context, ddp_device_kind kind, int32_t index, void* stream, ddp_error** error) {
    return guard(error, "ddp_set_stream", [&] { require(context, "context")->impl.set_stream({kind, index}, stream); });
}

ddp_status ddp_grad_ready_on(ddp_context* context, ddp_param param, void* stream, ddp_error** error) {
    return guard(error, "ddp_grad_ready_on", [&] {
        require(context, "context")->impl.step_call([&](Reducer& r) { r.arrivals().grad_ready_on(param, stream); });
    });
}

ddp_status ddp_finalize_enqueue(ddp_context* context, ddp_error** error) {
    return guard(error, "ddp_finalize_enqueue", [&] {
        require(context, "context")->impl.step_call([](Reducer& r) { r.results().finalize_enqueue(); });
    });
}

ddp_status ddp_finalize_on(ddp_context* context, void* stream, ddp_error** error) {
    return guard(error, "ddp_finalize_on", [&] {
        Context& c = require(context, "context")->impl;
        c.committed();
        const auto& devices = c.model().streams.all();
        if (devices.size() > 1)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "the parameters lie on ", devices.size(),
                      " devices; name each one's stream with ddp_set_stream, and call ddp_finalize_enqueue");
        const CallerScope scope(devices.empty() ? nullptr : devices.front().get(), stream);
        c.step_call([](Reducer& r) { r.results().finalize_enqueue(); });
    });
}

ddp_status ddp_wait_param_on(ddp_context* context, ddp_param param, void* stream, ddp_error** error) {
    return guard(error, "ddp_wait_param_on", [&] {
        require(context, "context")->impl.step_call([&](Reducer& r) { r.results().wait_param_on(param, stream); });
    });
}

void* ddp_bucket_stream(const ddp_bucket* bucket) {
    return bucket && bucket->stream ? bucket->stream->handle() : nullptr;
}
