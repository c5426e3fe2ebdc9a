// The side of a link that works on the memory of devices: the backend's transport for such memory,
// a path for each device, and the watch over operations that are enqueued there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "comm/device_path.h"
#include "comm/group.h"
#include "comm/stream_watch.h"
#include "comm/transport.h"

namespace libddp {

class LinkDevices {
public:
    // Is told what went wrong on a device, where no call waits for it.
    using Fail = std::function<void(const ErrorInfo& error, const std::string& what)>;

    // on_device: perhaps the same; null: the backend takes host memory only.
    LinkDevices(Group& link, std::shared_ptr<Transport> on_host,
                std::shared_ptr<Transport> on_device, Fail fail);

    const std::shared_ptr<Transport>& transport() const { return on_device_; }
    // For operations on memory of this device. With the turn of the executor.
    DevicePath& path(const ddp_device& device);
    // Memory on the stream's device, to be used in its order. Memory of the backend goes back to it
    // when the stream is done.
    std::shared_ptr<std::byte> allocate(std::size_t bytes, const StreamPtr& stream);
    // Throws what broke the link, or the operations of this step that have ended: streams go on
    // without a result then.
    void check(std::int64_t step);
    // Operations that are enqueued belong to other ranks as well: they are aborted only if they do
    // not end by themselves.
    void end();
    bool on_own_thread() const { return watch_ && watch_->on_own_thread(); }

private:
    Group& link_;
    const std::shared_ptr<Transport> on_host_, on_device_;
    const Fail fail_;
    std::unique_ptr<StreamWatch> watch_;  // made when it is needed
    std::map<std::pair<ddp_device_kind, std::int32_t>, std::unique_ptr<DevicePath>> paths_;
};

}  // namespace libddp
