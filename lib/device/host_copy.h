// Numbers on their way between a device and ordinary memory of the host: what is saved, and what is loaded.
#pragma once

#include <cstddef>
#include <memory>

#include "device/stream.h"

namespace libddp {

// Copies to ordinary memory of the host what is at `memory` when the stream comes to this point, and waits for that: throws
// TIMEOUT after five minutes.
void download(const StreamPtr& stream, void* host, const void* memory, std::size_t bytes);

// A copy to a device that may not have begun. It keeps what it needs of the host.
class Upload {
public:
    // Enqueues it. `host` is read at once.
    Upload(const StreamPtr& stream, void* memory, const void* host, std::size_t bytes);
    ~Upload() { release_after(std::move(pinned_), end_); }
    Upload(const Upload&) = delete;
    Upload& operator=(const Upload&) = delete;

    bool done() const { return end_->done(); }

private:
    std::shared_ptr<std::byte> pinned_;
    EventPtr end_;
};

}  // namespace libddp
