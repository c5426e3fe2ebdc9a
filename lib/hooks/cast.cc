#include "hooks/cast.h"

#include "device/dtype.h"
#include "device/kernels.h"
#include "device/scratch.h"

namespace libddp {

// The bucket as the inner hook sees it.
struct CastHook::Job {
    ddp_bucket narrow;
    ScratchMemory memory;

    void describe(const ddp_bucket& wide, ddp_dtype dtype) {
        std::byte* buffer = memory.require(wide.count * dtype_size(dtype));
        narrow = wide;
        narrow.dtype = dtype;
        narrow.buffer = buffer;
        narrow.result = nullptr;
        for (auto& tensor : narrow.tensors) tensor.gradient = buffer + wide.first_element(tensor) * dtype_size(dtype);
    }
};

WorkPtr CastHook::reduce(ddp_group& group, ddp_bucket& bucket) {
    if (!is_real(bucket.dtype) || dtype_size(bucket.dtype) <= 2) return inner_->reduce(group, bucket);
    auto job = jobs_.take(bucket.index);
    job->describe(bucket, dtype_);
    cpu::convert(job->memory.get(), dtype_, bucket.buffer, bucket.dtype, bucket.count);
    auto give_back = [job, &bucket] {
        const ddp_bucket& narrow = job->narrow;
        bucket.result = narrow.result ? narrow.result : narrow.buffer;
        bucket.result_dtype = narrow.result ? narrow.result_dtype : narrow.dtype;
    };
    OpTag tag = current_tag();
    tag.memory = job;
    const ScopedTag scope(std::move(tag));
    const WorkPtr work = inner_->reduce(group, job->narrow);
    if (!work) {
        give_back();
        return nullptr;
    }
    return work->then(
        [give_back]() -> WorkPtr {
            give_back();
            return nullptr;
        },
        true);
}

std::string CastHook::name() const {
    return str(dtype_ == DDP_F16 ? "fp16(" : "bf16(", inner_->name(), ")");
}

}  // namespace libddp
