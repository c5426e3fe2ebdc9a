// What a link does where its operations are on the memory of devices.
#include <algorithm>

#include "comm/link.h"
#include "util/log.h"

namespace libddp {
namespace {

// How long operations that are enqueued on a device have to end by themselves when the group is freed, and after an abort.
constexpr std::int64_t kDrainMs = 400;

}  // namespace

void Link::abort_transports() {
    transport_->abort();
    if (on_device_ && on_device_ != transport_) on_device_->abort();
}

// What is enqueued on devices belongs to other ranks as well: it is aborted only if it does not end by itself.
void Link::end_enqueued() {
    watch_->stop_checking();
    if (!watch_->drain(Deadline::after_ms(kDrainMs))) {
        on_device_->abort();
        watch_->drain(Deadline::after_ms(kDrainMs));
    }
    watch_.reset();
}

// Memory of the backend goes back to it when the stream is done with it.
std::shared_ptr<std::byte> Link::allocate(std::size_t bytes, const StreamPtr& stream) {
    void* memory = on_device_ ? on_device_->allocate(std::max<std::size_t>(bytes, 1), stream->device()) : nullptr;
    if (!memory) return stream->allocate(bytes);
    return {static_cast<std::byte*>(memory), [owner = on_device_, stream](std::byte* m) {
                if (stream->idle_within(kDrainMs))
                    owner->deallocate(m);
                else
                    log(LogLevel::kWarn, device_name(stream->device()),
                        ": a bucket is not freed, because work on it does not end");
            }};
}

DevicePath& Link::path(const ddp_device& device) {
    if (on_device_ && !watch_)
        watch_ = std::make_unique<StreamWatch>(
            [transport = on_device_.get()] { transport->check_enqueued(); },
            [this](const ErrorInfo& error, const std::string& what) { enqueued_failed(error, what); });
    auto& path = paths_[{device.kind, device.index}];
    if (!path)
        path = std::make_unique<DevicePath>(DevicePath::Config{device, on_device_.get(), transport_.get(), watch_.get(),
                                                               rank(), world(), [this] { check(); }});
    return *path;
}

void Link::check_enqueued() {
    check();
    if (!on_device_) return;
    try {
        on_device_->check_enqueued();
    } catch (const Error& error) {
        enqueued_failed(error.info(), "operations on a device");
    }
    check();
}

// On the watch's thread, or on one that has waited for a device.
void Link::enqueued_failed(const ErrorInfo& error, const std::string& what) {
    const auto alive = weak_from_this().lock();
    if (!alive || broken()) return;
    break_everywhere(monitor_ ? monitor_->resolve(error, what) : error);
}

}  // namespace libddp
