// From where a hook left a bucket's result into one gradient.
#pragma once

#include "hooks/bucket.h"

namespace libddp {

// target null: the gradient's place in the bucket (view). False if the result was there already.
bool write_back(const ddp_bucket& bucket, const BucketTensor& tensor, void* target);

}  // namespace libddp
