#include "hooks/wrappers.h"

#include <cstring>
#include <utility>

#include "device/scratch.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "util/error.h"

namespace libddp {
namespace {

// The user looks for the result in the bucket's own buffer.
void bring_home(ddp_bucket& bucket) {
    if (!bucket.result) return;
    if (bucket.stream)
        on_device::transfer(*bucket.stream, {{bucket.buffer, bucket.result, bucket.count}},
                            bucket.result_dtype, bucket.dtype, 1);
    else if (bucket.result_dtype == bucket.dtype)
        std::memcpy(bucket.buffer, bucket.result, bucket.count * dtype_size(bucket.dtype));
    else
        cpu::convert(bucket.buffer, bucket.dtype, bucket.result, bucket.result_dtype, bucket.count);
    bucket.result = nullptr;
}

}  // namespace

// The bucket as the inner hook sees it.
struct CastHook::Job {
    ddp_bucket narrow;
    ScratchMemory memory;
    bool filled = false;  // the gradients were put here already
    bool fresh = false;   // home has been told to allocate, since the bucket was filled

    // The memory is of home, which reads the result, also where the gradients come from the bucket.
    void describe(const ddp_bucket& wide, ddp_dtype dtype) {
        const std::size_t bytes = wide.count * dtype_size(dtype);
        fresh = !memory.holds(bytes, wide.home);
        std::byte* buffer = memory.require(bytes, wide.home);
        narrow = wide;
        narrow.dtype = dtype;
        narrow.buffer = buffer;
        narrow.result = nullptr;
        for (auto& tensor : narrow.tensors)
            tensor.gradient = buffer + wide.first_element(tensor) * dtype_size(dtype);
    }

    // Home is waited for only where it must allocate: what else is on it may be later buckets.
    void fill(const ddp_bucket& wide) {
        if (wide.stream) {
            if (fresh) wide.stream->wait(*wide.home->record());
            on_device::transfer(*wide.stream, {{narrow.buffer, wide.buffer, wide.count}},
                                wide.dtype, narrow.dtype, 1);
        } else {
            cpu::convert(narrow.buffer, narrow.dtype, wide.buffer, wide.dtype, wide.count);
        }
    }
};

WorkPtr CastHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    if (!narrows(bucket)) return inner().reduce(group, bucket, tag);
    auto job = jobs_.take(bucket.index);
    const bool filled = std::exchange(job->filled, false);
    job->describe(bucket, dtype_);
    if (!filled) job->fill(bucket);
    auto give_back = [job, &bucket] {
        const ddp_bucket& narrow = job->narrow;
        bucket.result = narrow.result ? narrow.result : narrow.buffer;
        bucket.result_dtype = narrow.result ? narrow.result_dtype : narrow.dtype;
    };
    const OpTag narrow_tag = tag.keeping(job, job->memory.on_device());
    const WorkPtr work = inner().reduce(group, job->narrow, narrow_tag);
    if (!work) {
        give_back();
        return nullptr;
    }
    return work->then(
        [give_back](const OpTag&) -> WorkPtr {
            give_back();
            return nullptr;
        },
        true, narrow_tag);
}

bool CastHook::narrows(const ddp_bucket& bucket) {
    return is_real(bucket.dtype) && dtype_size(bucket.dtype) > 2;
}

Hook::Target CastHook::target(ddp_bucket& bucket) {
    if (!narrows(bucket)) return inner().target(bucket);
    const auto job = jobs_.take(bucket.index);
    job->filled = true;
    return {job->memory.require(bucket.count * dtype_size(dtype_), bucket.home), dtype_};
}

std::string CastHook::name() const {
    return str(dtype_ == DDP_F16 ? "fp16(" : "bf16(", inner().name(), ")");
}

void ThenHook::User::call(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) const {
    bring_home(bucket);
    const ScopedTag scope(tag);
    ddp_error* error = nullptr;
    const ddp_status status = fn(data.get(), &group, &bucket, &error);
    if (status == DDP_OK) return;
    throw Error(take_user_error(status, error, "the function of ddp_hook_then"));
}

WorkPtr ThenHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    const WorkPtr work = inner().reduce(group, bucket, tag);
    if (!work) {
        user_.call(group, bucket, tag);
        return nullptr;
    }
    // By reference: the hook outlives its works, and the user's data must go when the hook does.
    return work->then(
        [&user = user_, &group, &bucket](const OpTag& inherited) -> WorkPtr {
            user.call(group, bucket, inherited);
            return nullptr;
        },
        user_.any_thread, tag);
}

}  // namespace libddp
