// Work on a device in order: streams, events, memory that belongs to a stream, memory of the host
// that a device reaches.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "util/deadline.h"

namespace libddp {

class DeviceStream;
class EventPool;

// A point of a stream. It outlives the stream, and is used again when nobody has it any more.
class DeviceEvent {
public:
    DeviceEvent(std::shared_ptr<EventPool> pool, void* event)
        : pool_(std::move(pool)), event_(event) {}
    ~DeviceEvent();
    DeviceEvent(const DeviceEvent&) = delete;
    DeviceEvent& operator=(const DeviceEvent&) = delete;

    bool done() const;
    // The host waits at most so long, and at most 100 ms: who waits longer looks up meanwhile. True
    // if done.
    bool wait(std::chrono::nanoseconds at_most) const;
    void* handle() const { return event_; }

private:
    const std::shared_ptr<EventPool> pool_;
    void* const event_;
};
using EventPtr = std::shared_ptr<const DeviceEvent>;

// The host waits for the event, and calls `look` now and then, which may throw. False if the
// deadline passed first.
template <class Look>
bool wait_for(const DeviceEvent& event, const Deadline& deadline, Look look) {
    while (!event.wait(std::chrono::milliseconds(20))) {
        look();
        if (deadline.expired()) return false;
    }
    return true;
}

class DeviceStream : public std::enable_shared_from_this<DeviceStream> {
public:
    // Throws UNSUPPORTED or UNAVAILABLE if there is no such device.
    static std::shared_ptr<DeviceStream> create(const ddp_device& device);
    ~DeviceStream();
    DeviceStream(const DeviceStream&) = delete;
    DeviceStream& operator=(const DeviceStream&) = delete;

    const ddp_device& device() const { return device_; }
    void* handle() const { return stream_; }

    // The number of the capture into a graph that a stream of this device is part of; 0: none.
    std::uint64_t capture(void* stream) const;
    // Throws INVALID_STATE if there is one.
    void refuse_capture(void* stream) const;
    // This stream is being captured: the graph keeps this for as long as there is anybody who can
    // launch it.
    void keep_in_graph(std::shared_ptr<const void> kept) const;

    // A point of this stream, or of another one of the device.
    EventPtr record() const { return record(stream_); }
    EventPtr record(void* stream) const;
    // Lets this stream wait for the event, or another stream of the device.
    void wait(const DeviceEvent& event) const { wait(event, stream_); }
    void wait(const DeviceEvent& event, void* stream) const;
    // This stream waits for what is on `stream` now, or the other way round.
    void follow(void* stream) const { wait(*record(stream)); }
    void lead(void* stream) const { wait(*record(), stream); }

    // The host waits until everything on this stream is done; false if that takes longer, or the
    // device has failed.
    bool idle_within(std::int64_t ms) const noexcept;

    // Zeroed when this stream comes to it; freed in the order of this stream, which it keeps. Throws
    // INVALID_STATE while this stream is captured: the memory would be the graph's.
    std::shared_ptr<std::byte> allocate(std::size_t bytes);

    // `host` is of allocate_pinned().
    void copy_to_host(void* host, const void* memory, std::size_t bytes) const;
    void copy_to_device(void* memory, const void* host, std::size_t bytes) const;

private:
    DeviceStream(const ddp_device& device, const ddp_device_module& module);

    void free(std::byte* memory) noexcept;

    const ddp_device device_;
    const ddp_device_module& module_;
    void* stream_ = nullptr;
    std::shared_ptr<EventPool> events_;
};
// Frees what graphs had kept that have ended.
void free_memory_of_graphs();
using StreamPtr = std::shared_ptr<DeviceStream>;

// Whether a handle is CUDA's per-thread default stream: another stream on every thread.
inline bool names_thread_stream(const void* stream) {
    return reinterpret_cast<std::uintptr_t>(stream) == 2;
}

// Host memory from and to which devices of this kind copy without a detour. Aligned to 64 bytes. It
// must not be freed while a copy uses it: let go of it with release_after().
std::shared_ptr<std::byte> allocate_pinned(ddp_device_kind kind, std::size_t bytes);
// Waits until the event is done (null: it is), at most 1 s; otherwise the memory is kept for ever.
void release_after(std::shared_ptr<std::byte> memory, const EventPtr& event) noexcept;

}  // namespace libddp
