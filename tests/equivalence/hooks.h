// Communication hooks that do, each in its own way, what libddp does without one.
#pragma once

#include "equivalence/equivalence.h"

namespace equivalence {

inline ddp::Work reduce_bucket(ddp_group* group, ddp_bucket* bucket, ddp_reduce_op op) {
    ddp_work* work = nullptr;
    ddp::detail::call(ddp_allreduce, group, static_cast<const void*>(nullptr),
                      ddp_bucket_buffer(bucket), ddp_bucket_count(bucket), ddp_bucket_dtype(bucket),
                      op, &work);
    return ddp::Work(work);
}

inline ddp::Work average(ddp_group* group, ddp_bucket* bucket) {
    return reduce_bucket(group, bucket, DDP_AVG);
}

// Divides in a continuation. Buckets of f64 only.
inline ddp::Work sum_then_divide(ddp_group* group, ddp_bucket* bucket) {
    return reduce_bucket(group, bucket, DDP_SUM).then([group, bucket] {
        auto* values = static_cast<double*>(ddp_bucket_buffer(bucket));
        for (std::size_t i = 0; i < ddp_bucket_count(bucket); ++i)
            values[i] /= ddp_group_world_size(group);
        return ddp::Work();
    });
}

// Divides first, as the sum of low-precision gradients needs it. Buckets of f64 only.
inline ddp::Work divide_then_sum(ddp_group* group, ddp_bucket* bucket) {
    auto* values = static_cast<double*>(ddp_bucket_buffer(bucket));
    for (std::size_t i = 0; i < ddp_bucket_count(bucket); ++i)
        values[i] /= ddp_group_world_size(group);
    return reduce_bucket(group, bucket, DDP_SUM);
}

}  // namespace equivalence
