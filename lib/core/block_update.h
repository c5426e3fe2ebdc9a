// The update of a bucket's pieces in the blocks in which a collective gives their gradients, while
// those are in a cache. New values take the place of the gradients, from where they travel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "core/gradients.h"
#include "ddp/shard.h"
#include "util/mutex.h"

namespace libddp {

// Updates `count` elements of a piece after its `first` first ones, from their gradients. Those of
// a piece come in order.
using UpdateElementsFn =
    std::function<void(const ddp_piece& piece, std::int64_t first, std::int64_t count)>;

class BlockUpdate {
public:
    struct Part {
        ddp_piece piece;        // its gradient has the size of its value, and lies in the bucket
        std::size_t offset;     // of its gradient in this rank's part of the bucket, in bytes
        std::size_t item;       // bytes of an element
        const ParamState* now;  // of its parameter: not every step updates it
    };

    // parts: all pieces of this rank in the bucket, in its order. begun: set before any value
    // changes.
    BlockUpdate(UpdateElementsFn update, std::vector<Part> parts, std::atomic<bool>& begun)
        : update_(std::move(update)), parts_(std::move(parts)), begun_(begun) {}

    // Bytes of this rank's part of the bucket, whose gradients are final, in order. Any thread.
    void take(std::size_t offset, std::size_t bytes);
    // The collective has ended. False: it gave no block, and every gradient is still there. Throws
    // what went wrong.
    bool finish();
    // The program's memory may go: nobody writes there from here on.
    void end();

private:
    const UpdateElementsFn update_;
    const std::vector<Part> parts_;
    Mutex mutex_;
    std::atomic<bool>& begun_ DDP_GUARDED_BY(mutex_);
    bool taken_ DDP_GUARDED_BY(mutex_) = false;
    bool ended_ DDP_GUARDED_BY(mutex_) = false;
    std::exception_ptr error_ DDP_GUARDED_BY(mutex_);
};

}  // namespace libddp
