#include "comm/device_path.h"

#include <utility>

#include "kernels/dtype.h"
#include "kernels/on_device.h"

namespace libddp {

DevicePath::DevicePath(Config config) : config_(std::move(config)), stream_(on_device::make_stream(config_.device)) {
    if (!config_.on_device && config_.world > 1)
        staging_.emplace(stream_, *config_.on_host, config_.rank, config_.world, config_.look);
}

void DevicePath::run(ddp_collective collective, double scale_after, const Place& place) {
    stream_->wait(place.begin);
    try {
        if (scale_after != 1 && collective.kind == DDP_COLLECTIVE_ALLREDUCE && is_floating(collective.dtype)) {
            on_device::transfer(*stream_, {{collective.recv, collective.send, collective.count}}, collective.dtype,
                              collective.dtype, scale_after);
            collective.send = collective.recv;
            scale_after = 1;
        }
        if (config_.world == 1)
            run_alone(collective);
        else if (config_.on_device)
            enqueue(collective, place);
        else
            staging_->run(collective);
        if (scale_after != 1) {
            const DeviceStream& end = staging_ ? staging_->up() : *stream_;
            on_device::transfer(end, {{collective.recv, collective.recv, collective.count}}, collective.dtype, collective.dtype,
                         scale_after);
        }
    } catch (...) {
        // Copies may be under way: whoever frees the memory comes after them.
        try {
            give_back_order(place);
        } catch (const Error&) {
            // A device that fails does nothing more.
        }
        throw;
    }
    give_back_order(place);
}

void DevicePath::enqueue(const ddp_collective& collective, const Place& place) {
    StreamWatch::Entry entry;
    entry.begin = stream_->record();
    entry.timeout_ms = collective.timeout_ms;
    entry.memory = place.memory;
    entry.what = place.what;
    ddp_collective op = collective;
    op.stream = stream_->handle();
    config_.on_device->run(op);
    entry.end = stream_->record();
    config_.watch->add(std::move(entry));
}

// A backend's scale is 1 here, and so is that of a mean.
void DevicePath::run_alone(const ddp_collective& c) {
    if (c.send != c.recv && c.count > 0) on_device::transfer(*stream_, {{c.recv, c.send, c.count}}, c.dtype, c.dtype, 1);
}

void DevicePath::give_back_order(const Place& place) const {
    place.stream.wait(*stream_->record());
    if (staging_) place.stream.wait(*staging_->up().record());
}

}  // namespace libddp
