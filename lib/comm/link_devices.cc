#include "comm/link_devices.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include "comm/comparisons.h"
#include "util/deadline.h"
#include "util/log.h"

namespace libddp {
namespace {

// How long operations that are enqueued on a device have to end by themselves when the group is
// freed, and after an abort.
constexpr std::int64_t kDrainMs = 400;

}  // namespace

LinkDevices::LinkDevices(Group& link, std::shared_ptr<Transport> on_host,
                         std::shared_ptr<Transport> on_device,
                         std::shared_ptr<Executor> comparisons, Fail fail)
    : link_(link),
      on_host_(std::move(on_host)),
      on_device_(std::move(on_device)),
      comparisons_(std::move(comparisons)),
      fail_(std::move(fail)) {}

DevicePath& LinkDevices::path(const ddp_device& device) {
    if (on_device_ && !watch_)
        watch_ = std::make_unique<StreamWatch>(
            [weak = std::weak_ptr(on_device_)] {
                if (const auto transport = weak.lock()) transport->check_enqueued();
            },
            [this, link = link_.weak_from_this()](const ErrorInfo& error, const Signature& what) {
                if (const auto alive = link.lock()) fail_(error, describe(what));
            });
    auto& path = paths_[{device.kind, device.index}];
    if (!path)
        path = std::make_unique<DevicePath>(
            DevicePath::Config{device, on_device_, on_host_.get(), watch_.get(),
                               [this, device] { return spoiled(device.kind); }, link_.rank(),
                               link_.world(), [&link = link_] { link.check(); }});
    return *path;
}

std::shared_ptr<const std::uint32_t> LinkDevices::spoiled(ddp_device_kind kind) {
    const Lock lock(spoiled_mutex_);
    if (!spoiled_) {
        auto memory = allocate_pinned(kind, sizeof(std::uint32_t));
        spoiled_ = {memory, new (memory.get()) std::uint32_t(is_spoiled_ ? 1 : 0)};
    }
    return spoiled_;
}

void LinkDevices::spoil_graphs() {
    const Lock lock(spoiled_mutex_);
    is_spoiled_ = true;
    if (spoiled_) std::atomic_ref(*spoiled_).store(1, std::memory_order_release);
}

WorkPtr LinkDevices::compare_behind(OperationPtr comparison, const WaitTarget& target) {
    WorkPtr work = comparisons_->submit(std::move(comparison), target);
    const Lock lock(newest_mutex_);
    newest_ = work;
    return work;
}

WorkPtr LinkDevices::newest() const {
    if (!comparisons_) return nullptr;
    const Lock lock(newest_mutex_);
    return newest_;
}

bool LinkDevices::compared() const {
    const WorkPtr last = newest();
    return !last || last->done();
}

void LinkDevices::finish_comparisons() {
    if (const WorkPtr last = newest()) wait_for_comparison(*last);
}

void LinkDevices::leave_comparisons() {
    for (const auto end = Deadline::after_ms(kDrainMs);
         !compared() && !link_.broken() && !end.expired();)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::shared_ptr<std::byte> LinkDevices::allocate(std::size_t bytes, const StreamPtr& stream) {
    void* memory = on_device_
                       ? on_device_->allocate(std::max<std::size_t>(bytes, 1), stream->device())
                       : nullptr;
    if (!memory) return stream->allocate(bytes);
    return {static_cast<std::byte*>(memory), [owner = on_device_, stream](std::byte* m) {
                if (stream->idle_within(kDrainMs))
                    owner->deallocate(m);
                else
                    log(LogLevel::kWarn, device_name(stream->device()),
                        ": a bucket is not freed, because work on it does not end");
            }};
}

void LinkDevices::check(std::int64_t step) {
    link_.check();
    if (!on_device_) return;
    try {
        on_device_->check_enqueued();
    } catch (const Error& error) {
        ErrorInfo info = error.info();
        info.step = step;
        fail_(info, "operations on a device");
    }
    link_.check();
}

void LinkDevices::end() {
    if (!watch_) return;
    watch_->stop_checking();
    if (!watch_->drain(Deadline::after_ms(kDrainMs))) {
        spoil_graphs();
        on_device_->abort();
        watch_->drain(Deadline::after_ms(kDrainMs));
    }
    // Memory of a device that does not answer is kept for ever.
    if (!watch_->stop()) new auto(std::move(paths_));  // NOLINT
    watch_.reset();
}

}  // namespace libddp
