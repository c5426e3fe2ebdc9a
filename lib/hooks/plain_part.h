// The parameters of a bucket that a hook does not compress: put together, so that they travel in one allreduce.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "device/dtype.h"
#include "device/scratch.h"
#include "hooks/hook.h"

namespace libddp {

class PlainPart {
public:
    void clear() {
        gradients_.clear();
        bytes_ = 0;
    }
    void add(void* gradient, std::size_t bytes) {
        if (bytes == 0) return;
        gradients_.push_back({gradient, bytes});
        bytes_ += bytes;
    }

    // Null if there is nothing to send. owner: whoever holds this; it must last as long.
    WorkPtr submit(Group& group, const ddp_bucket& bucket, std::shared_ptr<const void> owner) {
        if (bytes_ == 0) return nullptr;
        std::byte* next = memory_.require(bytes_);
        for (const auto& [gradient, bytes] : gradients_) {
            std::memcpy(next, gradient, bytes);
            next += bytes;
        }
        return group.submit({DDP_COLLECTIVE_ALLREDUCE, nullptr, memory_.get(), bytes_ / dtype_size(bucket.dtype),
                             bucket.dtype, bucket.op()},
                            std::move(owner));
    }
    // Once it has arrived.
    void give_back() const {
        const std::byte* next = memory_.get();
        for (const auto& [gradient, bytes] : gradients_) {
            std::memcpy(gradient, next, bytes);
            next += bytes;
        }
    }

private:
    struct Gradient {
        void* memory;
        std::size_t bytes;
    };

    std::vector<Gradient> gradients_;
    std::size_t bytes_ = 0;
    ScratchMemory memory_;
};

}  // namespace libddp
