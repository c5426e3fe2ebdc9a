#include "hooks/plain.h"

#include "util/error.h"

namespace libddp {

Collective allreduce_of(const ddp_bucket& bucket) {
    return {DDP_COLLECTIVE_ALLREDUCE,
            nullptr,
            bucket.buffer,
            bucket.count,
            bucket.dtype,
            bucket.op(),
            0,
            bucket.device};
}

// Returns the last work, which ends after the others.
WorkPtr AllreduceHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    if (!bucket.sections) return group.impl->submit(allreduce_of(bucket), tag);
    WorkPtr last;
    for (const BucketSection& section : *bucket.sections) {
        Collective c = allreduce_of(bucket);
        c.recv = static_cast<std::byte*>(c.recv) + section.begin * dtype_size(c.dtype);
        c.count = section.count;
        c.counts = section.counts;
        c.take = section.take;
        if (c.counts) c.kind = DDP_COLLECTIVE_REDUCE_SCATTER;
        last = group.impl->submit(c, tag);
    }
    return last;
}

WorkPtr UserHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    const ScopedTag scope(tag);
    ddp_work* work = nullptr;
    ddp_error* error = nullptr;
    const ddp_status status = fn_(user_data_.get(), &group, &bucket, &work, &error);
    WorkPtr result = work ? work->impl : nullptr;
    delete work;
    if (status == DDP_OK) return result;
    throw Error(take_user_error(status, error, "the communication hook"));
}

}  // namespace libddp
