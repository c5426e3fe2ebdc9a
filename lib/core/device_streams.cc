#include "core/device_streams.h"

#include <algorithm>
#include <utility>

#include "kernels/on_device.h"
#include "util/error.h"

namespace libddp {

const StreamPtr& DeviceStreams::of_link(std::size_t link) {
    while (link_streams_.size() <= link) link_streams_.push_back(on_device::make_stream(device()));
    return link_streams_[link];
}

void DeviceStreams::gather(bool captured) const {
    for (const StreamPtr& stream : link_streams_) {
        if (captured) stream->wait(*stream_->record());
        stream_->wait(*stream->record());
    }
}

void DeviceStreams::refuse_own_capture() const {
    if (stream_->capture(stream_->handle()) != 0)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the capture into a graph that the step before is part "
                  "of has not ended; end it first, or capture this, too");
}

void DeviceStreams::note(void* stream) {
    if (names_thread_stream(stream)) return stream_->follow(stream);
    const Lock lock(mutex_);
    if (std::find(noted_.begin(), noted_.end(), stream) == noted_.end()) noted_.push_back(stream);
}

void DeviceStreams::follow_noted() {
    const Lock lock(mutex_);
    for (void* stream : std::exchange(noted_, {})) stream_->follow(stream);
}

void DeviceStreams::forget_noted() {
    const Lock lock(mutex_);
    noted_.clear();
}

void DeviceStreams::wait(std::int64_t timeout_ms, const std::function<void()>& look) const {
    if (!wait_for(*stream_->record(), Deadline::after_ms(timeout_ms), look))
        fail(DDP_ERROR_TIMEOUT, device_name(device()),
             ": the device did not come to the end of the reduction within ", timeout_ms, " ms");
}

DeviceStreams* ContextStreams::find(const ddp_device& device) const {
    for (const auto& device_streams : devices_)
        if (same_device(device_streams->device(), device)) return device_streams.get();
    return nullptr;
}

DeviceStreams* ContextStreams::require(const ddp_device& device) {
    if (is_cpu(device)) return nullptr;
    if (auto* known = find(device)) return known;
    return devices_.emplace_back(std::make_unique<DeviceStreams>(device)).get();
}

StreamPtr ContextStreams::stream(const ddp_device& device) const {
    const auto* known = find(device);
    return known ? known->stream() : nullptr;
}

}  // namespace libddp
