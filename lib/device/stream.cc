#include "device/stream.h"

#include <algorithm>

#include "util/error.h"
#include "util/log.h"
#include "util/mutex.h"

namespace libddp {
namespace {

constexpr std::int64_t kReleaseMs = 1'000;
constexpr std::chrono::nanoseconds kLongestWait = std::chrono::milliseconds(100);

// Memory that graphs have kept, and that nobody has any more. The thread that ends a graph may not call the
// device, so memory is freed by whoever next asks for some, or frees a stream.
class Released {
public:
    void add(void* kept) {
        const Lock lock(mutex_);
        released_.push_back(kept);
    }
    void free() {
        std::vector<void*> released;
        {
            const Lock lock(mutex_);
            released.swap(released_);
        }
        for (void* kept : released) delete static_cast<std::shared_ptr<const void>*>(kept);
    }

private:
    Mutex mutex_;
    std::vector<void*> released_ DDP_GUARDED_BY(mutex_);
};

Released& released_by_graphs() {
    static Released& instance = *new Released;
    return instance;
}

void release(void* kept) {
    released_by_graphs().add(kept);
}

}  // namespace

// The events of one stream that nobody has.
class EventPool {
public:
    EventPool(const ddp_device& device, const ddp_device_module& module)
        : device_(device), module_(module) {}
    ~EventPool() {
        for (void* event : free_) module_.event_destroy(device_.index, event);
    }
    EventPool(const EventPool&) = delete;
    EventPool& operator=(const EventPool&) = delete;

    void* take() {
        {
            const Lock lock(mutex_);
            if (!free_.empty()) {
                void* const event = free_.back();
                free_.pop_back();
                return event;
            }
            free_.reserve(++made_);  // give() must not fail
        }
        // Not with the mutex, as it may take its time, and give() must not.
        void* event = nullptr;
        call_device(device_, "creating an event", module_.event_create, device_.index, &event);
        return event;
    }
    void give(void* event) {
        const Lock lock(mutex_);
        free_.push_back(event);
    }

    const ddp_device device_;
    const ddp_device_module& module_;

private:
    Mutex mutex_;
    std::vector<void*> free_ DDP_GUARDED_BY(mutex_);
    std::size_t made_ DDP_GUARDED_BY(mutex_) = 0;
};

DeviceEvent::~DeviceEvent() {
    pool_->give(event_);
}

bool DeviceEvent::done() const {
    std::int32_t done = 0;
    call_device(pool_->device_, "asking an event", pool_->module_.event_query, pool_->device_.index,
                event_, &done);
    return done != 0;
}

bool DeviceEvent::wait(std::chrono::nanoseconds at_most) const {
    const std::int64_t time =
        std::clamp(at_most, std::chrono::nanoseconds(0), kLongestWait).count();
    std::int32_t done = 0;
    call_device(pool_->device_, "waiting for an event", pool_->module_.event_wait,
                pool_->device_.index, event_, time, &done);
    return done != 0;
}

DeviceStream::DeviceStream(const ddp_device& device, const ddp_device_module& module)
    : device_(device), module_(module), events_(std::make_shared<EventPool>(device, module)) {
    call_device(device_, "creating a stream", module_.stream_create, device_.index, &stream_);
}

StreamPtr DeviceStream::create(const ddp_device& device) {
    released_by_graphs().free();
    const ddp_device_module& module = device_module(device.kind);
    require_device(device, "a stream");
    return StreamPtr(new DeviceStream(device, module));
}

DeviceStream::~DeviceStream() {
    module_.stream_destroy(device_.index, stream_);
}

std::uint64_t DeviceStream::capture(void* stream) const {
    std::uint64_t capture = 0;
    call_device(device_, "asking a stream", module_.stream_capture, device_.index, stream,
                &capture);
    if (capture == DDP_NO_PART_OF_CAPTURES)
        fail_call(DDP_ERROR_INVALID_STATE, "this is the default stream of ", device_name(device_),
                  ", which cannot be used while another stream is being captured into a graph; "
                  "name the stream that is captured");
    return capture;
}

void DeviceStream::refuse_capture(void* stream) const {
    if (capture(stream) != 0)
        fail_call(DDP_ERROR_INVALID_STATE, "the stream of ", device_name(device_),
                  " is being captured into a graph, which can hold gradients and the end of a step "
                  "only; call this outside of the capture");
}

void DeviceStream::keep_in_graph(std::shared_ptr<const void> kept) const {
    auto owned = std::make_unique<std::shared_ptr<const void>>(std::move(kept));
    call_device(device_, "keeping memory for a graph", module_.capture_keep, device_.index, stream_,
                owned.get(), release);
    owned.release();  // NOLINT: the graph has it
}

EventPtr DeviceStream::record(void* stream) const {
    auto event = std::make_shared<DeviceEvent>(events_, events_->take());
    call_device(device_, "recording an event", module_.event_record, device_.index, event->handle(),
                stream);
    return event;
}

void DeviceStream::wait(const DeviceEvent& event, void* stream) const {
    call_device(device_, "ordering streams", module_.stream_wait, device_.index, stream,
                event.handle());
}

bool DeviceStream::idle_within(std::int64_t ms) const noexcept try {
    return wait_for(*record(), Deadline::after_ms(ms), [] {});
} catch (const std::exception&) {
    return false;
}

std::shared_ptr<std::byte> DeviceStream::allocate(std::size_t bytes) {
    released_by_graphs().free();
    refuse_capture(stream_);
    void* memory = nullptr;
    call_device(device_, "allocating memory", module_.allocate, device_.index, stream_,
                std::max<std::size_t>(bytes, 1), &memory);
    return {static_cast<std::byte*>(memory),
            [stream = shared_from_this()](std::byte* m) { stream->free(m); }};
}

// In a capture that would become part of the graph: somebody does it later.
void DeviceStream::free(std::byte* memory) noexcept try {
    if (capture(stream_) == 0) return module_.deallocate(device_.index, stream_, memory);
    const auto later = [stream = shared_from_this()](std::byte* m) { stream->free(m); };
    release(new std::shared_ptr<const void>(memory, later));
} catch (const std::exception&) {
    // A device that has failed: the memory is lost with it.
}

void free_memory_of_graphs() {
    released_by_graphs().free();
}

void DeviceStream::copy_to_host(void* host, const void* memory, std::size_t bytes) const {
    if (bytes > 0)
        call_device(device_, "copying to the host", module_.copy, device_.index, stream_, host,
                    memory, bytes, DDP_COPY_TO_HOST);
}

void DeviceStream::copy_to_device(void* memory, const void* host, std::size_t bytes) const {
    if (bytes > 0)
        call_device(device_, "copying to the device", module_.copy, device_.index, stream_, memory,
                    host, bytes, DDP_COPY_TO_DEVICE);
}

void release_after(std::shared_ptr<std::byte> memory, const EventPtr& event) noexcept {
    try {
        if (!memory || !event || wait_for(*event, Deadline::after_ms(kReleaseMs), [] {})) return;
        log(LogLevel::kWarn, "pinned memory is not freed, because a copy does not end");
        new std::shared_ptr<std::byte>(std::move(memory));  // NOLINT: the copy may still come
    } catch (const std::exception&) {
        // A device that has failed copies nothing more.
    }
}

std::shared_ptr<std::byte> allocate_pinned(ddp_device_kind kind, std::size_t bytes) {
    const ddp_device_module& module = device_module(kind);
    void* memory = nullptr;
    call_device({kind, 0}, "allocating pinned memory", module.allocate_host,
                std::max<std::size_t>(bytes, 1), &memory);
    return {static_cast<std::byte*>(memory),
            [&module](std::byte* m) { module.deallocate_host(m); }};
}

}  // namespace libddp
