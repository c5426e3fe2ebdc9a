// hook.h, builtin_hooks.h and more_hooks.h.
#include "ddp/hook.h"

#include "capi/bytes.h"
#include "capi/context.h"
#include "ddp/builtin_hooks.h"
#include "ddp/more_hooks.h"
#include "device/device.h"
#include "hooks/builtin.h"
#include "hooks/plain.h"
#include "hooks/wrappers.h"
#include "kernels/dtype.h"

using namespace libddp;

namespace {

void give_tensor(const ddp_bucket* bucket, int32_t i, bool gradient, ddp_tensor* out) {
    require(bucket, "bucket");
    require(out, "tensor");
    const auto count = static_cast<int32_t>(bucket->tensors.size());
    if (i < 0 || i >= count)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "i is ", i, ", but the bucket holds ", count,
                  " parameters");
    const std::size_t size = told_size(out, "tensor", "set it to sizeof(ddp_tensor)");
    const BucketTensor& t = bucket->tensors[static_cast<std::size_t>(i)];
    fill_struct(
        out, size,
        ddp_tensor{size, gradient ? t.gradient : t.value, t.shape, t.ndim,
                   gradient ? bucket->dtype : t.value_dtype, t.count, bucket->device, t.param, 0});
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
    const auto from = reinterpret_cast<std::uintptr_t>(a),
               other = reinterpret_cast<std::uintptr_t>(b);
    return from < other + b_bytes && other < from + a_bytes;
}

}  // namespace

ddp_status ddp_set_comm_hook(ddp_context* context, ddp_comm_hook_fn fn, void* user_data,
                             void (*destroy)(void*), ddp_error** error) {
    return guard(error, "ddp_set_comm_hook", [&] {
        Context& c = between_steps(context);
        take_over(user_data, destroy, [&](const std::shared_ptr<void>& state) {
            c.set_hook(fn ? std::make_shared<UserHook>(fn, state) : nullptr);
        });
    });
}

ddp_status ddp_use_hook(ddp_context* context, const char* name, const char* options,
                        ddp_error** error) {
    return guard(error, "ddp_use_hook", [&] {
        Context& c = between_steps(context);
        require(name, "name");
        c.set_hook(make_hook(name, text_or(options, ""), c.group()));
    });
}

ddp_status ddp_compress_hook(ddp_context* context, ddp_dtype dtype, ddp_error** error) {
    return guard(error, "ddp_compress_hook", [&] {
        Context& c = between_steps(context);
        c.set_hook(make_cast(c.hook(), dtype));
    });
}

ddp_status ddp_hook_then(ddp_context* context, ddp_bucket_fn fn, void* user_data,
                         void (*destroy)(void*), uint32_t flags, ddp_error** error) {
    return guard(error, "ddp_hook_then", [&] {
        Context& c = between_steps(context);
        require(fn, "fn");
        require_flags(flags, DDP_WORK_ANY_THREAD);
        if (c.model().options.reducer.nonfinite == Nonfinite::kSkip)
            fail_call(DDP_ERROR_UNSUPPORTED,
                      "with DDP_CONTEXT_SKIP_NONFINITE ranks agree to skip a step after its last "
                      "bucket, and the function would have updated the model by then; use "
                      "DDP_CONTEXT_REFUSE_NONFINITE");
        take_over(user_data, destroy, [&](const std::shared_ptr<void>& state) {
            c.set_hook(std::make_shared<ThenHook>(c.hook(), fn, state,
                                                  (flags & DDP_WORK_ANY_THREAD) != 0));
        });
    });
}

ddp_status ddp_set_buffer_hook(ddp_context* context, ddp_buffer_hook_fn fn, void* user_data,
                               void (*destroy)(void*), ddp_error** error) {
    return guard(error, "ddp_set_buffer_hook", [&] {
        Context& c = between_steps(context);
        take_over(user_data, destroy, [&](const std::shared_ptr<void>& state) {
            c.buffers().set_hook({fn, state});
        });
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

ddp_status ddp_hook_state_load(ddp_context* context, const void* data, size_t size, uint32_t flags,
                               ddp_error** error) {
    return guard(error, "ddp_hook_state_load", [&] {
        Context& c = between_steps(context);
        require(data, "data");
        require_flags(flags, DDP_HOOK_STATE_SHARED_ONLY);
        c.committed().load_hook_state(static_cast<const std::byte*>(data), size,
                                      (flags & DDP_HOOK_STATE_SHARED_ONLY) != 0);
    });
}

int32_t ddp_bucket_index(const ddp_bucket* bucket) {
    return bucket ? bucket->index : -1;
}
int32_t ddp_bucket_is_last(const ddp_bucket* bucket) {
    return bucket ? (bucket->is_last ? 1 : 0) : -1;
}
int64_t ddp_bucket_step(const ddp_bucket* bucket) {
    return bucket ? bucket->step : -1;
}
ddp_dtype ddp_bucket_dtype(const ddp_bucket* bucket) {
    return bucket ? bucket->dtype : 0;
}
ddp_reduce_op ddp_bucket_op(const ddp_bucket* bucket) {
    return bucket ? bucket->op() : 0;
}
ddp_device ddp_bucket_device(const ddp_bucket* bucket) {
    return bucket ? bucket->device : ddp_device{DDP_DEVICE_CPU, 0};
}
void* ddp_bucket_buffer(const ddp_bucket* bucket) {
    return bucket ? bucket->buffer : nullptr;
}
size_t ddp_bucket_count(const ddp_bucket* bucket) {
    return bucket ? bucket->count : 0;
}
int32_t ddp_bucket_param_count(const ddp_bucket* bucket) {
    return bucket ? static_cast<int32_t>(bucket->tensors.size()) : -1;
}

ddp_status ddp_bucket_gradient(const ddp_bucket* bucket, int32_t i, ddp_tensor* tensor,
                               ddp_error** error) {
    return guard(error, "ddp_bucket_gradient", [&] { give_tensor(bucket, i, true, tensor); });
}

ddp_status ddp_bucket_parameter(const ddp_bucket* bucket, int32_t i, ddp_tensor* tensor,
                                ddp_error** error) {
    return guard(error, "ddp_bucket_parameter", [&] { give_tensor(bucket, i, false, tensor); });
}

ddp_status ddp_bucket_set_buffer(ddp_bucket* bucket, void* buffer, ddp_dtype dtype,
                                 ddp_error** error) {
    return guard(error, "ddp_bucket_set_buffer", [&] {
        require(bucket, "bucket");
        require(buffer, "buffer");
        const bool convertible = is_floating(dtype) && is_floating(bucket->dtype) &&
                                 is_complex(dtype) == is_complex(bucket->dtype);
        if (dtype != bucket->dtype && !convertible)
            fail_call(DDP_ERROR_UNSUPPORTED, dtype_name(dtype), " cannot become the bucket's ",
                      dtype_name(bucket->dtype));
        const ddp_device where = device_of(buffer);
        if (!same_device(where, bucket->device))
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "buffer is memory of ", device_name(where),
                      ", and the bucket is on ", device_name(bucket->device));
        const bool own = buffer == bucket->buffer && dtype == bucket->dtype;
        if (!own && overlap(buffer, bucket->count * dtype_size(dtype), bucket->buffer,
                            bucket->count * dtype_size(bucket->dtype)))
            fail_call(DDP_ERROR_INVALID_ARGUMENT,
                      "buffer lies in the bucket's own; put the result there as ",
                      dtype_name(bucket->dtype), " without this call, or give other memory");
        bucket->result = own ? nullptr : buffer;
        bucket->result_dtype = dtype;
    });
}
