#include "hooks/allreduce.h"

namespace libddp {

WorkPtr allreduce(ddp_group& group, const ddp_bucket& bucket) {
    return group.impl->submit(
        {DDP_COLLECTIVE_ALLREDUCE, nullptr, bucket.buffer, bucket.count, bucket.dtype, bucket.op(), 0, bucket.device});
}

WorkPtr AllreduceHook::reduce(ddp_group& group, ddp_bucket& bucket) {
    return allreduce(group, bucket);
}

}  // namespace libddp
