#include "core/device_lane.h"

#include <algorithm>
#include <utility>

#include "util/error.h"
#include "kernels/on_device.h"

namespace libddp {

const StreamPtr& DeviceLane::turn(std::size_t link) {
    while (turns_.size() <= link) turns_.push_back(on_device::make_stream(device()));
    return turns_[link];
}

void DeviceLane::gather() const {
    for (const StreamPtr& turn : turns_) stream_->wait(*turn->record());
}

void DeviceLane::note(void* stream) {
    if (names_thread_stream(stream)) return stream_->follow(stream);
    const std::lock_guard lock(mutex_);
    if (std::find(noted_.begin(), noted_.end(), stream) == noted_.end()) noted_.push_back(stream);
}

void DeviceLane::follow_noted() {
    const std::lock_guard lock(mutex_);
    for (void* stream : std::exchange(noted_, {})) stream_->follow(stream);
}

void DeviceLane::forget_noted() {
    const std::lock_guard lock(mutex_);
    noted_.clear();
}

void DeviceLane::wait(std::int64_t timeout_ms, const std::function<void()>& look) const {
    if (!wait_for(*stream_->record(), Deadline::after_ms(timeout_ms), look))
        fail(DDP_ERROR_TIMEOUT, device_name(device()), ": the device did not come to the end of the reduction within ",
             timeout_ms, " ms");
}

DeviceLane* DeviceLanes::find(const ddp_device& device) const {
    for (const auto& lane : lanes_)
        if (same_device(lane->device(), device)) return lane.get();
    return nullptr;
}

DeviceLane* DeviceLanes::require(const ddp_device& device) {
    if (is_cpu(device)) return nullptr;
    if (auto* lane = find(device)) return lane;
    return lanes_.emplace_back(std::make_unique<DeviceLane>(device)).get();
}

StreamPtr DeviceLanes::stream(const ddp_device& device) const {
    const auto* lane = find(device);
    return lane ? lane->stream() : nullptr;
}

}  // namespace libddp
