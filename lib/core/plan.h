// The bucket plan: which gradient stands where, and in which order buckets are launched. A value; pure functions make
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/types.h"

namespace libddp {

// What planning needs to know of a parameter.
struct PlanParam {
    std::size_t bytes = 0;
    ddp_dtype dtype = DDP_F32;
    ddp_device device{DDP_DEVICE_CPU, 0};
};

struct PlanBucket {
    ddp_dtype dtype = DDP_F32;
    ddp_device device{DDP_DEVICE_CPU, 0};
    std::vector<std::int32_t> params;  // in the order in which gradients are expected
    std::vector<std::size_t> offsets;  // of each, in bytes from the bucket's start; multiples of kAlignment
    std::size_t bytes = 0;             // with the gaps
};

struct BucketPlan {
    std::vector<PlanBucket> buckets;  // in launch order

    bool operator==(const BucketPlan& other) const;
};

// Reverse registration order: gradients come roughly from the last layer to the first (Li et al. 2020, section 3.2.3).
std::vector<std::int32_t> reverse_order(std::size_t count);

// Walks `order` and fills one open bucket for each (dtype, device). A parameter is added first, and then the bucket is
// closed if it has reached the cap, so a bucket may exceed it. caps[i] is the cap in bytes of the i-th bucket of each
// (dtype, device); the last one repeats. Buckets are launched in the order in which their last gradient is expected.
BucketPlan make_plan(const std::vector<PlanParam>& params, const std::vector<std::int32_t>& order,
                     const std::vector<std::size_t>& caps);

// Equal plans have equal hashes, on every machine. Never 0.
std::uint64_t hash_plan(const BucketPlan& plan);

}  // namespace libddp
