// Memory that an operation needs while it is on its way: it grows and never shrinks.
#pragma once

#include <cstddef>
#include <memory>

#include "device/memory.h"
#include "device/stream.h"

namespace libddp {

class ScratchMemory {
public:
    std::byte* get() const { return memory_.get(); }
    // The memory by itself, if a device has it: there whoever uses it next comes later in the order
    // of the stream, so that an operation that is enqueued needs no more than this to last.
    std::shared_ptr<const void> on_device() const { return stream_ ? memory_ : nullptr; }
    // Aligned to 64 bytes. Its content is lost if it has to grow.
    std::byte* require(std::size_t bytes) {
        if (bytes > capacity_) {
            memory_ = allocate_zeroed(bytes);
            capacity_ = bytes;
        }
        return memory_.get();
    }
    // Whether require() would give what is there.
    bool holds(std::size_t bytes, const StreamPtr& stream) const {
        return stream == stream_ && bytes <= capacity_;
    }
    // On the stream's device and in its order; null: of the CPU.
    std::byte* require(std::size_t bytes, const StreamPtr& stream) {
        if (stream != stream_) {
            memory_ = nullptr;
            capacity_ = 0;
            stream_ = stream;
        }
        if (!stream) return require(bytes);
        if (bytes > capacity_) {
            memory_ = stream->allocate(bytes);
            capacity_ = bytes;
        }
        return memory_.get();
    }

private:
    std::shared_ptr<std::byte> memory_;
    std::size_t capacity_ = 0;
    StreamPtr stream_;
};

}  // namespace libddp
