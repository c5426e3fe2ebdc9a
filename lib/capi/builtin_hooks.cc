#include "ddp/builtin_hooks.h"

#include <cstdlib>

#include "capi/bytes.h"
#include "capi/guard.h"
#include "core/context.h"
#include "ddp/more_hooks.h"
#include "hooks/options.h"
#include "hooks/wrappers.h"

using namespace libddp;

namespace {

// The context, if a hook may be installed now.
Context& between_steps(ddp_context* context) {
    Context& c = require(context, "context")->impl;
    c.require_between_steps();
    return c;
}

template <class Options>
Options read_or_default(const Options* options, Options defaults) {
    if (options) read_struct(options, &defaults, "options");
    return defaults;
}

// Installs what `make` makes of the options.
template <class Options, class Make>
void use(ddp_context* context, const Options* options, Options defaults, Make make) {
    Context& c = between_steps(context);
    c.set_hook(make(read_or_default(options, defaults)));
}

}  // namespace

ddp_status ddp_use_hook(ddp_context* context, const char* name, const char* options, ddp_error** error) {
    return guard(error, "ddp_use_hook", [&] {
        Context& c = between_steps(context);
        require(name, "name");
        c.set_hook(make_hook(name, text_or(options, ""), c.group()));
    });
}

void ddp_powersgd_options_init_sized(ddp_powersgd_options* options, size_t size) {
    fill_struct(options, size, powersgd_defaults());
}
ddp_status ddp_use_powersgd(ddp_context* context, const ddp_powersgd_options* options, ddp_error** error) {
    return guard(error, "ddp_use_powersgd", [&] { use(context, options, powersgd_defaults(), make_powersgd); });
}

void ddp_quantize_options_init_sized(ddp_quantize_options* options, size_t size) {
    fill_struct(options, size, quantize_defaults());
}
ddp_status ddp_use_quantize(ddp_context* context, const ddp_quantize_options* options, ddp_error** error) {
    return guard(error, "ddp_use_quantize", [&] { use(context, options, quantize_defaults(), make_quantize); });
}

void ddp_onebit_options_init_sized(ddp_onebit_options* options, size_t size) {
    fill_struct(options, size, onebit_defaults());
}
ddp_status ddp_use_onebit(ddp_context* context, const ddp_onebit_options* options, ddp_error** error) {
    return guard(error, "ddp_use_onebit", [&] { use(context, options, onebit_defaults(), make_onebit); });
}

void ddp_topk_options_init_sized(ddp_topk_options* options, size_t size) {
    fill_struct(options, size, topk_defaults());
}
ddp_status ddp_use_topk(ddp_context* context, const ddp_topk_options* options, ddp_error** error) {
    return guard(error, "ddp_use_topk", [&] { use(context, options, topk_defaults(), make_topk); });
}

void ddp_local_sgd_options_init_sized(ddp_local_sgd_options* options, size_t size) {
    fill_struct(options, size, local_sgd_defaults());
}
ddp_status ddp_use_local_sgd(ddp_context* context, const ddp_local_sgd_options* options, ddp_error** error) {
    const auto make = [](const ddp_local_sgd_options& o) {
        return make_local_sgd(o.start_step, o.subgroup ? o.subgroup->impl : nullptr);
    };
    return guard(error, "ddp_use_local_sgd", [&] { use(context, options, local_sgd_defaults(), make); });
}

ddp_status ddp_compress_hook(ddp_context* context, ddp_dtype dtype, ddp_error** error) {
    return guard(error, "ddp_compress_hook", [&] {
        Context& c = between_steps(context);
        c.set_hook(make_cast(c.hook(), dtype));
    });
}

ddp_status ddp_hook_then(ddp_context* context, ddp_bucket_fn fn, void* user_data, void (*destroy)(void*),
                         uint32_t flags, ddp_error** error) {
    return guard(error, "ddp_hook_then", [&] {
        Context& c = between_steps(context);
        require(fn, "fn");
        require_flags(flags, DDP_WORK_ANY_THREAD);
        if (c.model().options.reducer.nonfinite == Nonfinite::kSkip)
            fail_call(DDP_ERROR_UNSUPPORTED,
                      "with DDP_CONTEXT_SKIP_NONFINITE ranks agree to skip a step after its last bucket, and the "
                      "function would "
                      "have updated the model by then; use DDP_CONTEXT_REFUSE_NONFINITE");
        c.set_hook(
            std::make_shared<ThenHook>(c.hook(), fn, owned(user_data, destroy), (flags & DDP_WORK_ANY_THREAD) != 0));
    });
}

const char* ddp_hook_name(const ddp_context* context) {
    return context ? context->impl.hook_name().c_str() : nullptr;
}

ddp_status ddp_hook_state_save(ddp_context* context, void** data, size_t* size, ddp_error** error) {
    return guard(error, "ddp_hook_state_save", [&] {
        Context& c = between_steps(context);
        require(data, "data");
        require(size, "size");
        give_bytes(c.committed().hook_state(), data, size);
    });
}

void ddp_bytes_free(void* data) {
    std::free(data);
}

ddp_status ddp_hook_state_load(ddp_context* context, const void* data, size_t size, uint32_t flags, ddp_error** error) {
    return guard(error, "ddp_hook_state_load", [&] {
        Context& c = between_steps(context);
        require(data, "data");
        require_flags(flags, DDP_HOOK_STATE_SHARED_ONLY);
        c.committed().load_hook_state(static_cast<const std::byte*>(data), size,
                                      (flags & DDP_HOOK_STATE_SHARED_ONLY) != 0);
    });
}
