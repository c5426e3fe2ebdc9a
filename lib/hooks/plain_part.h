// The parameters of a bucket that a hook does not compress: put together, so that they travel in one allreduce.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "device/dtype.h"
#include "device/scratch.h"
#include "device/transfer.h"
#include "hooks/hook.h"

namespace libddp {

class PlainPart {
public:
    // Before what belongs to a bucket is added.
    void clear() {
        gradients_.clear();
        count_ = 0;
    }
    void add(void* gradient, std::size_t count) {
        if (count == 0) return;
        gradients_.push_back({nullptr, gradient, count});
        count_ += count;
    }

    // Null if there is nothing to send. owner: whoever holds this; it must last as long.
    WorkPtr submit(Group& group, const ddp_bucket& bucket, std::shared_ptr<const void> owner) {
        stream_ = bucket.stream;
        dtype_ = bucket.dtype;
        if (count_ == 0) return nullptr;
        std::byte* next = memory_.require(count_ * dtype_size(dtype_), bucket.home);
        if (stream_) stream_->wait(*bucket.home->record());  // the memory is of that stream
        for (ddp_segment& gradient : gradients_) {
            gradient.dst = next;
            next += gradient.count * dtype_size(dtype_);
        }
        transfer(stream_, gradients_, dtype_);
        return group.submit(
            {DDP_COLLECTIVE_ALLREDUCE, nullptr, memory_.get(), count_, dtype_, bucket.op(), 0, bucket.device},
            std::move(owner));
    }
    // Once it has arrived.
    void give_back() const {
        std::vector<ddp_segment> back;
        for (const ddp_segment& gradient : gradients_)
            back.push_back({const_cast<void*>(gradient.src), gradient.dst, gradient.count});
        if (!back.empty()) transfer(stream_, back, dtype_);
    }

private:
    std::vector<ddp_segment> gradients_;  // the way there
    std::size_t count_ = 0;
    ddp_dtype dtype_ = DDP_F32;
    StreamPtr stream_;
    ScratchMemory memory_;
};

}  // namespace libddp
