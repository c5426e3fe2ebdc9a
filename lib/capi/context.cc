#include "ddp/context.h"

#include "capi/guard.h"
#include "comm/group.h"
#include "core/context.h"

using namespace libddp;

namespace {

Context& context_of(ddp_context* context, const char* call) {
    return require(context, call, "context")->impl;
}

ContextOptions read_options(const ddp_context_options* options, const char* call) {
    ddp_context_options o;
    ddp_context_options_init(&o);
    if (options) read_struct(options, &o, call, "options");
    require_flags(o.flags, DDP_CONTEXT_NO_REBUILD | DDP_CONTEXT_NO_INITIAL_BROADCAST | DDP_CONTEXT_NO_BUFFER_BROADCAST,
                  call);
    if (o.reduction != DDP_REDUCTION_MEAN && o.reduction != DDP_REDUCTION_SUM)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": options->reduction ", o.reduction, " is unknown");
    ContextOptions result;
    auto& reducer = result.reducer;
    if (o.bucket_cap_bytes != 0) reducer.cap = o.bucket_cap_bytes;
    reducer.first_cap =
        o.first_bucket_cap_bytes != 0 ? o.first_bucket_cap_bytes : std::min(reducer.first_cap, reducer.cap);
    reducer.mean = o.reduction == DDP_REDUCTION_MEAN;
    reducer.rebuild = !(o.flags & DDP_CONTEXT_NO_REBUILD);
    result.initial_broadcast = !(o.flags & DDP_CONTEXT_NO_INITIAL_BROADCAST);
    result.buffer_broadcast = !(o.flags & DDP_CONTEXT_NO_BUFFER_BROADCAST);
    return result;
}

Param read_param(const ddp_param_desc* desc, const char* call) {
    ddp_param_desc d;
    ddp_param_desc_init(&d);
    read_struct(require(desc, call, "desc"), &d, call, "desc");
    require(d.name, call, "desc->name");
    require_flags(d.flags, 0, call);
    require_zero(d.reserved0, call, "desc->reserved0");
    if (d.ndim < 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": '", d.name, "': ndim is ", d.ndim, "; it must not be negative");
    if (d.ndim > 16)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": '", d.name, "': ndim is ", d.ndim, "; at most 16 are allowed");
    if (d.ndim > 0) require(d.shape, call, "desc->shape");
    Param param;
    param.name = d.name;
    if (d.ndim > 0) param.shape.assign(d.shape, d.shape + d.ndim);
    param.dtype = d.dtype;
    param.device = d.device;
    param.data = d.data;
    param.grad = d.grad;
    return param;
}

}  // namespace

void ddp_context_options_init(ddp_context_options* options) {
    if (!options) return;
    std::memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
}

ddp_status ddp_context_create(ddp_group* group, const ddp_context_options* options, ddp_context** context,
                              ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_context_create";
        require(group, call, "group")->impl->check();
        require(context, call, "context");
        *context = new ddp_context{Context(group->impl, read_options(options, call))};
    });
}

void ddp_context_free(ddp_context* context) {
    delete context;
}

ddp_status ddp_context_abort(ddp_context* context, const char* reason, ddp_error** error) {
    return guard(error, [&] { context_of(context, "ddp_context_abort").abort(text_or(reason, "")); });
}

void ddp_param_desc_init(ddp_param_desc* desc) {
    if (!desc) return;
    std::memset(desc, 0, sizeof *desc);
    desc->struct_size = sizeof *desc;
    desc->dtype = DDP_F32;
}

ddp_status ddp_register_param(ddp_context* context, const ddp_param_desc* desc, ddp_param* param, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_register_param";
        Context& c = context_of(context, call);
        require(param, call, "param");
        *param = c.register_param(read_param(desc, call));
    });
}

ddp_status ddp_register_buffer(ddp_context* context, const ddp_param_desc* desc, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_register_buffer";
        context_of(context, call).register_buffer(read_param(desc, call));
    });
}

ddp_status ddp_commit(ddp_context* context, ddp_error** error) {
    return guard(error, [&] { context_of(context, "ddp_commit").commit(); });
}

ddp_status ddp_grad_view(ddp_context* context, ddp_param param, void** view, ddp_error** error) {
    return guard(error, [&] {
        Context& c = context_of(context, "ddp_grad_view");
        require(view, "ddp_grad_view", "view");
        *view = c.grad_view(param);
    });
}

int64_t ddp_layout_generation(const ddp_context* context) {
    return context ? context->impl.layout_generation() : -1;
}
int32_t ddp_context_param_count(const ddp_context* context) {
    return context ? context->impl.table().size() : -1;
}
int32_t ddp_context_bucket_count(const ddp_context* context) {
    return context ? context->impl.bucket_count() : -1;
}
int32_t ddp_context_param_bucket(const ddp_context* context, ddp_param param) {
    return context ? context->impl.bucket_of(param) : -1;
}

ddp_status ddp_context_find_param(const ddp_context* context, const char* name, ddp_param* param, ddp_error** error) {
    return guard(error, [&] {
        constexpr const char* call = "ddp_context_find_param";
        require(context, call, "context");
        require(name, call, "name");
        require(param, call, "param");
        auto found = context->impl.table().find(name);
        if (found < 0) fail(DDP_ERROR_NOT_FOUND, call, ": no parameter is named '", name, "'");
        *param = found;
    });
}

ddp_status ddp_step_begin(ddp_context* context, ddp_error** error) {
    return guard(error, [&] { context_of(context, "ddp_step_begin").step_begin(); });
}

ddp_status ddp_set_sync(ddp_context* context, int32_t sync, ddp_error** error) {
    return guard(error, [&] { context_of(context, "ddp_set_sync").set_sync(sync != 0); });
}

ddp_status ddp_grad_ready(ddp_context* context, ddp_param param, ddp_error** error) {
    return guard(error, [&] { context_of(context, "ddp_grad_ready").grad_ready(param); });
}

ddp_status ddp_finalize(ddp_context* context, ddp_error** error) {
    return guard(error, [&] { context_of(context, "ddp_finalize").finalize(); });
}
