// Values of a bucket that come from other ranks, on their way to the program's memory.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "util/mutex.h"

namespace libddp {

class Delivery {
public:
    struct Target {
        std::byte* value;
        std::size_t offset, bytes;  // in the bucket
    };

    // In the order of the bucket.
    explicit Delivery(std::vector<Target> targets) : targets_(std::move(targets)) {}

    // Bytes of the bucket, wherever they are now. Any thread.
    void take(const void* data, std::size_t offset, std::size_t bytes);
    // The program's memory may go: nobody writes there from here on.
    void end();

private:
    const std::vector<Target> targets_;
    Mutex mutex_;
    bool ended_ DDP_GUARDED_BY(mutex_) = false;
};

}  // namespace libddp
