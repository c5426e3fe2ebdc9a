#include "hooks/then_hook.h"

#include <cstring>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "kernels/on_device.h"

namespace libddp {
namespace {

// The user looks for the result in the bucket's own buffer.
void bring_home(ddp_bucket& bucket) {
    if (!bucket.result) return;
    if (bucket.stream)
        on_device::transfer(*bucket.stream, {{bucket.buffer, bucket.result, bucket.count}}, bucket.result_dtype, bucket.dtype, 1);
    else if (bucket.result_dtype == bucket.dtype)
        std::memcpy(bucket.buffer, bucket.result, bucket.count * dtype_size(bucket.dtype));
    else
        cpu::convert(bucket.buffer, bucket.dtype, bucket.result, bucket.result_dtype, bucket.count);
    bucket.result = nullptr;
}

}  // namespace

void ThenHook::User::call(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) const {
    bring_home(bucket);
    const ScopedTag scope(tag);
    ddp_error* error = nullptr;
    const ddp_status status = fn(data.get(), &group, &bucket, &error);
    if (status == DDP_OK) return;
    throw Error(take_user_error(status, error, "the function of ddp_hook_then"));
}

WorkPtr ThenHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    const WorkPtr work = inner_->reduce(group, bucket, tag);
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
