// A context's own streams on each device that holds its parameters, and the caller's stream that
// they are ordered with.
//
// One stream fills buckets and empties them. The work on a bucket in between is in the order of
// another one, of which there is one for each link of the group: so buckets are filled while others
// travel, and those of different links travel at the same time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/stream.h"
#include "kernels/on_device.h"
#include "util/mutex.h"

namespace libddp {

class DeviceStreams {
public:
    explicit DeviceStreams(const ddp_device& device) : stream_(on_device::make_stream(device)) {}

    const StreamPtr& stream() const { return stream_; }
    // For buckets of one link.
    const StreamPtr& of_link(std::size_t link);
    // The first stream comes after all that is on the others. captured: it is part of a graph, and
    // the others become part of it, if they are not.
    void gather(bool captured = false) const;
    const ddp_device& device() const { return stream_->device(); }
    // The caller's, for calls that name none.
    void* caller() const { return caller_; }
    void set_caller(void* stream) { caller_ = stream; }

    // Work that is enqueued from now on comes after the work on the caller's stream, or the other
    // way round.
    void enter() const {
        stream_->refuse_capture(caller_);
        refuse_own_capture();
        follow_caller();
        gather();
    }
    // Work that comes here is after the work on the caller's stream now; buckets may be on their
    // way.
    void follow_caller() const { stream_->follow(caller_); }
    std::uint64_t callers_capture() const { return stream_->capture(caller_); }
    // Throws INVALID_STATE as long as a capture has not ended that a step of the context is part of.
    void refuse_own_capture() const;
    void leave() const { stream_->lead(caller_); }

    // Streams on which gradients came that are reduced in a later step. follow_noted() comes after
    // all that is on them by then, at the end of their step.
    void note(void* stream);
    void follow_noted();
    void forget_noted();

    // The host waits until all is done here. look: throws when that can no longer be. Throws
    // TIMEOUT.
    void wait(std::int64_t timeout_ms, const std::function<void()>& look) const;

private:
    const StreamPtr stream_;
    std::vector<StreamPtr> link_streams_;
    void* caller_ = nullptr;
    Mutex mutex_;
    std::vector<void*> noted_ DDP_GUARDED_BY(mutex_);
};

// The streams of all devices.
class ContextStreams {
public:
    // Null for the CPU, and for a device that was never required.
    DeviceStreams* find(const ddp_device& device) const;
    DeviceStreams* require(const ddp_device& device);
    bool empty() const { return devices_.empty(); }
    void gather(bool captured = false) const {
        for (const auto& device : devices_) device->gather(captured);
    }
    // Null for the CPU.
    StreamPtr stream(const ddp_device& device) const;

    // Whether a caller's stream is being captured.
    bool captured() const {
        return std::any_of(devices_.begin(), devices_.end(),
                           [](const auto& device) { return device->callers_capture() != 0; });
    }
    void enter() const {
        for (const auto& device : devices_) device->enter();
    }
    void follow_callers() const {
        for (const auto& device : devices_) device->follow_caller();
    }
    void leave() const {
        for (const auto& device : devices_) device->leave();
    }
    // As the functions of DeviceStreams.
    void follow_noted() const {
        for (const auto& device : devices_) device->follow_noted();
    }
    void forget_noted() const {
        for (const auto& device : devices_) device->forget_noted();
    }
    void wait(std::int64_t timeout_ms, const std::function<void()>& look) const {
        for (const auto& device : devices_) device->wait(timeout_ms, look);
    }
    const std::vector<std::unique_ptr<DeviceStreams>>& all() const { return devices_; }

private:
    std::vector<std::unique_ptr<DeviceStreams>> devices_;  // few
};

// A call between steps: in the order of the caller's streams from its beginning to its end, however
// that is.
class StreamScope {
public:
    explicit StreamScope(const ContextStreams& streams) : streams_(streams) { streams_.enter(); }
    ~StreamScope() {
        try {
            streams_.leave();
        } catch (...) {
            // A device that has failed says so in the next call.
        }
    }
    StreamScope(const StreamScope&) = delete;
    StreamScope& operator=(const StreamScope&) = delete;

private:
    const ContextStreams& streams_;
};

// The caller of this device (null: of the CPU) is this stream as long as the scope lasts.
class CallerScope {
public:
    CallerScope(DeviceStreams* streams, void* stream)
        : streams_(streams), before_(streams ? streams->caller() : nullptr) {
        if (streams_) streams_->set_caller(stream);
    }
    ~CallerScope() {
        if (streams_) streams_->set_caller(before_);
    }
    CallerScope(const CallerScope&) = delete;
    CallerScope& operator=(const CallerScope&) = delete;

private:
    DeviceStreams* const streams_;
    void* const before_;
};

}  // namespace libddp
