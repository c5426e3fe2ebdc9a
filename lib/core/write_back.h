// From where a hook left a bucket's result into one gradient.
#pragma once

#include "hooks/bucket.h"

namespace libddp {

// target null: the gradient's place in the bucket (view).
void write_back(const ddp_bucket& bucket, const BucketTensor& tensor, void* target);

}  // namespace libddp
