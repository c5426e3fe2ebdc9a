// Copies between memory of a device and any memory of the host, for which the caller waits: not for
// gradients, but for what is saved and loaded between steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/stream.h"

namespace libddp {

// All go through one piece of pinned memory, a part after another, which is there from the first
// copy to the end. After an error nothing more may be copied.
class HostCopies {
public:
    explicit HostCopies(std::int64_t timeout_ms) : timeout_ms_(timeout_ms) {}
    ~HostCopies();
    HostCopies(const HostCopies&) = delete;
    HostCopies& operator=(const HostCopies&) = delete;

    // In the order of the stream. Throws TIMEOUT if all that is before it on the stream, and the
    // copy, take longer.
    void out(const DeviceStream& stream, void* host, const void* memory, std::size_t bytes);
    void in(const DeviceStream& stream, void* memory, const void* host, std::size_t bytes);

private:
    void require(ddp_device_kind kind);
    void wait(const DeviceStream& stream, const Deadline& deadline);

    const std::int64_t timeout_ms_;
    ddp_device_kind kind_ = DDP_DEVICE_CPU;  // that pinned_ is for
    std::shared_ptr<std::byte> pinned_;
    EventPtr copied_;  // the last copy
};

}  // namespace libddp
