// The side of a link that works on the memory of devices: the backend's transport for such memory,
// a path for each device, the watch over operations that are enqueued there, and the queue of what
// ranks compare behind them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "comm/device_path.h"
#include "comm/executor.h"
#include "comm/group.h"
#include "comm/stream_watch.h"
#include "comm/transport.h"
#include "util/mutex.h"

namespace libddp {

class LinkDevices {
public:
    // Is told what went wrong on a device, where no call waits for it.
    using Fail = std::function<void(const ErrorInfo& error, const std::string& what)>;

    // on_device: perhaps the same; null: the backend takes host memory only. comparisons: null
    // where on_host is the same or there is one rank.
    LinkDevices(Group& link, std::shared_ptr<Transport> on_host,
                std::shared_ptr<Transport> on_device, std::shared_ptr<Executor> comparisons,
                Fail fail);

    const std::shared_ptr<Transport>& transport() const { return on_device_; }
    // For operations on memory of this device. With the turn of the executor.
    DevicePath& path(const ddp_device& device);
    bool has_path(const ddp_device& device) const {
        return paths_.contains({device.kind, device.index});
    }

    // Null: ranks compare nothing behind operations.
    const std::shared_ptr<Executor>& comparisons() const { return comparisons_; }
    // Runs the comparison after those before it. With the turn of the link's executor, and so in
    // the same order on every rank.
    WorkPtr compare_behind(OperationPtr comparison, const WaitTarget& target);
    // Whether none is under way, so that on_host is free for something else.
    bool compared() const;
    // Waits until that is so; throws what one of them found.
    void finish_comparisons();
    // The same for a group that is freed, for a moment: another rank whose device has got this
    // rank's data compares with it as soon as it has a processor.
    void leave_comparisons();

    // Memory on the stream's device, to be used in its order. Memory of the backend goes back to it
    // when the stream is done.
    std::shared_ptr<std::byte> allocate(std::size_t bytes, const StreamPtr& stream);
    // The group has broken. Before operations are aborted: graphs of the program's have some, too.
    void spoil_graphs();
    // Throws what broke the link, or the operations of this step that have ended: streams go on
    // without a result then.
    void check(std::int64_t step);
    // Operations that are enqueued belong to other ranks as well: they are aborted only if they do
    // not end by themselves.
    void end();
    bool on_own_thread() const {
        return (watch_ && watch_->on_own_thread()) ||
               (comparisons_ && comparisons_->on_own_thread());
    }

private:
    WorkPtr newest() const;
    std::shared_ptr<const std::uint32_t> spoiled(ddp_device_kind kind);

    Group& link_;
    const std::shared_ptr<Transport> on_host_, on_device_;
    const std::shared_ptr<Executor> comparisons_;
    const Fail fail_;
    std::unique_ptr<StreamWatch> watch_;  // made when it is needed
    mutable Mutex newest_mutex_;
    WorkPtr newest_ DDP_GUARDED_BY(newest_mutex_);  // of the comparisons; null: there was none
    Mutex spoiled_mutex_;
    bool is_spoiled_ DDP_GUARDED_BY(spoiled_mutex_) = false;
    // in pinned memory, once there is a graph
    std::shared_ptr<std::uint32_t> spoiled_ DDP_GUARDED_BY(spoiled_mutex_);
    std::map<std::pair<ddp_device_kind, std::int32_t>, std::unique_ptr<DevicePath>> paths_;
};

}  // namespace libddp
