#include "core/kept_views.h"

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp {

bool write_back(const ddp_bucket& bucket, const BucketTensor& tensor, void* target) {
    if (!target) target = tensor.gradient;
    const auto count = static_cast<std::size_t>(tensor.count);
    if (!bucket.result) {
        if (target == tensor.gradient) return false;
        cpu::scale_copy(target, tensor.gradient, count, bucket.dtype, 1);
        return true;
    }
    const auto* source =
        static_cast<const std::byte*>(bucket.result) + bucket.first_element(tensor) * dtype_size(bucket.result_dtype);
    if (bucket.result_dtype == bucket.dtype)
        cpu::scale_copy(target, source, count, bucket.dtype, 1);
    else
        cpu::convert(target, bucket.dtype, source, bucket.result_dtype, count);
    return true;
}

}  // namespace libddp
