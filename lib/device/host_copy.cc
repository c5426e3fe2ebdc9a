#include "device/host_copy.h"

#include <algorithm>
#include <cstring>

#include "util/error.h"

namespace libddp {
namespace {

constexpr std::size_t kPinnedBytes = std::size_t{8} << 20;
constexpr std::int64_t kTimeoutMs = 300'000;

}  // namespace

void download(const StreamPtr& stream, void* host, const void* memory, std::size_t bytes) {
    auto pinned = allocate_pinned(stream->device().kind, std::min(bytes, kPinnedBytes));
    EventPtr copied;
    for (std::size_t at = 0; at < bytes; at += kPinnedBytes) {
        const std::size_t count = std::min(kPinnedBytes, bytes - at);
        stream->copy_to_host(pinned.get(), static_cast<const std::byte*>(memory) + at, count);
        copied = stream->record();
        if (!wait_for(*copied, Deadline::after_ms(kTimeoutMs), [] {})) {
            release_after(std::move(pinned), copied);
            fail(DDP_ERROR_TIMEOUT, device_name(stream->device()), ": a copy to the host did not end within ",
                 kTimeoutMs, " ms, because of the work before it");
        }
        std::memcpy(static_cast<std::byte*>(host) + at, pinned.get(), count);
    }
}

Upload::Upload(const StreamPtr& stream, void* memory, const void* host, std::size_t bytes)
    : pinned_(allocate_pinned(stream->device().kind, bytes)) {
    std::memcpy(pinned_.get(), host, bytes);
    stream->copy_to_device(memory, pinned_.get(), bytes);
    end_ = stream->record();
}

}  // namespace libddp
