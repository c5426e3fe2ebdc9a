// The memory that a hook needs while a bucket travels.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/pieces.h"
#include "device/scratch.h"
#include "hooks/hook.h"
#include "kernels/dtype.h"

namespace libddp {

// The memory for it, kept from step to step: fresh pages cost more than the arithmetic on them.
template <class Job>
class JobPool {
public:
    // The bucket's job. It is a new one if an operation of a step that failed may still use the old
    // one.
    std::shared_ptr<Job> take(std::int32_t bucket) {
        std::shared_ptr<Job>& job = jobs_[bucket];
        if (!job || job.use_count() > 1) job = std::make_shared<Job>();
        return job;
    }
    // Buckets that still travel keep their jobs.
    void clear() { jobs_.clear(); }

private:
    std::map<std::int32_t, std::shared_ptr<Job>> jobs_;
};

// The parameters of a bucket that a hook does not compress: put together, so that they travel in
// one allreduce.
class PlainPart {
public:
    void clear() { gradients_.clear(); }
    void add(void* gradient, std::size_t bytes) {
        if (bytes > 0) gradients_.push_back({static_cast<std::byte*>(gradient), bytes});
    }

    // Null if there is nothing to send. owner: whoever holds this; it must last as long.
    WorkPtr submit(Group& group, const ddp_bucket& bucket, std::shared_ptr<const void> owner,
                   const OpTag& tag) {
        const std::size_t bytes = total_bytes(gradients_);
        if (bytes == 0) return nullptr;
        stream_ = bucket.stream;
        memory_.require(bytes, stream_);
        gather_pieces(memory_.get(), gradients_, stream_);
        return group.submit(
            {DDP_COLLECTIVE_ALLREDUCE, nullptr, memory_.get(), bytes / dtype_size(bucket.dtype),
             bucket.dtype, bucket.op(), 0, bucket.device},
            tag.keeping(std::move(owner), memory_.on_device()));
    }
    // Once it has arrived.
    void give_back() const { scatter_pieces(memory_.get(), gradients_, stream_); }

private:
    std::vector<Piece> gradients_;
    StreamPtr stream_;  // in whose order the bucket is; null: on the CPU
    ScratchMemory memory_;
};

}  // namespace libddp
