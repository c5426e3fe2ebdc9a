#include "core/host_bucket.h"

#include <utility>

#include "comm/link.h"
#include "core/group_ref.h"
#include "device/dtype.h"
#include "device/kernels.h"
#include "util/error.h"

namespace libddp {

WorkPtr HostBucket::fetch(Group& group, const ddp_bucket& bucket) {
    describe(bucket);
    bucket.stream->copy_to_host(memory_.get(), bucket.buffer, bucket.count * dtype_size(bucket.dtype));
    copied_ = bucket.stream->record();
    // Whoever runs the queue waits, so that the thread that computes need not.
    auto wait = [self = shared_from_this(), ref = GroupRef(group), timeout_ms = group.timeout_ms(),
                 device = bucket.device]() -> ErrorInfo {
        try {
            if (wait_for(*self->copied_, Deadline::after_ms(timeout_ms), [&ref] { ref.get()->check(); })) return {};
            return {DDP_ERROR_TIMEOUT, str(device_name(device), ": a bucket did not come to the host within ",
                                           timeout_ms, " ms, because of the work before it")};
        } catch (const Error& error) {
            return error.info();
        }
    };
    return group.link(0)->executor()->submit_function(std::move(wait));
}

void HostBucket::describe(const ddp_bucket& bucket) {
    const std::size_t bytes = bucket.count * dtype_size(bucket.dtype);
    if (bytes > bytes_) {
        memory_ = allocate_pinned(bucket.device.kind, bytes);
        bytes_ = bytes;
    }
    bucket_ = bucket;
    bucket_.device = {DDP_DEVICE_CPU, 0};
    bucket_.stream = bucket_.home = nullptr;
    bucket_.done = nullptr;
    bucket_.buffer = memory_.get();
    for (BucketTensor& tensor : bucket_.tensors) {
        tensor.gradient = memory_.get() + bucket.first_element(tensor) * dtype_size(bucket.dtype);
        tensor.value = nullptr;
    }
}

WorkPtr HostBucket::reduce(Hook& hook, ddp_group& group, ddp_bucket& bucket) {
    const WorkPtr work = hook.reduce(group, bucket_);
    if (!work) {
        give_back(bucket);
        return nullptr;
    }
    return work->then(
        [self = shared_from_this(), &bucket]() -> WorkPtr {
            self->give_back(bucket);
            return nullptr;
        },
        true);
}

// A result in another place, and perhaps in another type, is brought into the bucket's own on the way.
void HostBucket::give_back(const ddp_bucket& bucket) {
    if (bucket_.result && bucket_.result_dtype == bucket.dtype)
        cpu::scale_copy(memory_.get(), bucket_.result, bucket.count, bucket.dtype, 1);
    else if (bucket_.result)
        cpu::convert(memory_.get(), bucket.dtype, bucket_.result, bucket_.result_dtype, bucket.count);
    bucket.stream->copy_to_device(bucket.buffer, memory_.get(), bucket.count * dtype_size(bucket.dtype));
    copied_ = bucket.stream->record();
}

}  // namespace libddp
