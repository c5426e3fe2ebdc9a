#include "device/host_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "util/error.h"

namespace libddp {
namespace {

constexpr std::size_t kPinnedBytes = std::size_t{4} << 20;

template <class Copy>
void in_parts(std::size_t bytes, Copy copy) {
    for (std::size_t at = 0; at < bytes; at += kPinnedBytes)
        copy(at, std::min(kPinnedBytes, bytes - at));
}

}  // namespace

HostCopies::~HostCopies() {
    release_after(std::move(pinned_), copied_);
}

void HostCopies::require(ddp_device_kind kind) {
    if (pinned_ && kind == kind_) return;
    pinned_ = allocate_pinned(kind, kPinnedBytes);  // every copy from or to what was here is done
    kind_ = kind;
}

// Returns when everything enqueued so far is done.
void HostCopies::wait(const DeviceStream& stream, const Deadline& deadline) {
    copied_ = stream.record();
    if (!wait_for(*copied_, deadline, [] {}))
        fail(DDP_ERROR_TIMEOUT, device_name(stream.device()),
             ": a copy between the device and the host did not end within ", timeout_ms_,
             " ms, because of the work before it");
}

void HostCopies::out(const DeviceStream& stream, void* host, const void* memory,
                     std::size_t bytes) {
    require(stream.device().kind);
    const Deadline deadline = Deadline::after_ms(timeout_ms_);
    in_parts(bytes, [&](std::size_t at, std::size_t n) {
        stream.copy_to_host(pinned_.get(), static_cast<const std::byte*>(memory) + at, n);
        wait(stream, deadline);
        std::memcpy(static_cast<std::byte*>(host) + at, pinned_.get(), n);
    });
}

void HostCopies::in(const DeviceStream& stream, void* memory, const void* host, std::size_t bytes) {
    require(stream.device().kind);
    const Deadline deadline = Deadline::after_ms(timeout_ms_);
    in_parts(bytes, [&](std::size_t at, std::size_t n) {
        std::memcpy(pinned_.get(), static_cast<const std::byte*>(host) + at, n);
        stream.copy_to_device(static_cast<std::byte*>(memory) + at, pinned_.get(), n);
        wait(stream, deadline);
    });
}

}  // namespace libddp
