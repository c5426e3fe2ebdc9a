#include "device/host_copy.h"

#include <algorithm>
#include <cstring>

#include "util/error.h"

namespace libddp {
namespace {

constexpr std::size_t kPinnedBytes = std::size_t{4} << 20;

// Pinned memory through which everything goes, a part after another.
class Way {
public:
    Way(const DeviceStream& stream, std::size_t bytes, std::int64_t timeout_ms)
        : stream_(stream),
          timeout_ms_(timeout_ms),
          deadline_(Deadline::after_ms(timeout_ms)),
          pinned_(allocate_pinned(stream.device().kind, std::min(bytes, kPinnedBytes))) {}
    ~Way() { release_after(std::move(pinned_), copied_); }
    Way(const Way&) = delete;
    Way& operator=(const Way&) = delete;

    std::byte* pinned() const { return pinned_.get(); }
    // What is enqueued is done when this returns.
    void wait() {
        copied_ = stream_.record();
        if (!wait_for(*copied_, deadline_, [] {}))
            fail(DDP_ERROR_TIMEOUT, device_name(stream_.device()),
                 ": a copy between the device and the host did not end within ", timeout_ms_,
                 " ms, because of the work before it");
    }

private:
    const DeviceStream& stream_;
    const std::int64_t timeout_ms_;
    const Deadline deadline_;
    std::shared_ptr<std::byte> pinned_;
    EventPtr copied_;
};

template <class Copy>
void in_parts(std::size_t bytes, Copy copy) {
    for (std::size_t at = 0; at < bytes; at += kPinnedBytes) copy(at, std::min(kPinnedBytes, bytes - at));
}

}  // namespace

void copy_out(const DeviceStream& stream, void* host, const void* memory, std::size_t bytes, std::int64_t timeout_ms) {
    Way way(stream, bytes, timeout_ms);
    in_parts(bytes, [&](std::size_t at, std::size_t n) {
        stream.copy_to_host(way.pinned(), static_cast<const std::byte*>(memory) + at, n);
        way.wait();
        std::memcpy(static_cast<std::byte*>(host) + at, way.pinned(), n);
    });
}

void copy_in(const DeviceStream& stream, void* memory, const void* host, std::size_t bytes, std::int64_t timeout_ms) {
    Way way(stream, bytes, timeout_ms);
    in_parts(bytes, [&](std::size_t at, std::size_t n) {
        std::memcpy(way.pinned(), static_cast<const std::byte*>(host) + at, n);
        stream.copy_to_device(static_cast<std::byte*>(memory) + at, way.pinned(), n);
        way.wait();
    });
}

}  // namespace libddp
