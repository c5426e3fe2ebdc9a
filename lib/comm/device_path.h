// How a link carries out collectives on the memory of one device, on streams of its own: enqueued by a backend that takes
// such memory, through staging by one that does not, and by itself where there is one rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/staging.h"
#include "comm/stream_watch.h"
#include "comm/transport.h"
#include "device/stream.h"

namespace libddp {

class DevicePath {
public:
    struct Config {
        ddp_device device{};
        Transport* on_device = nullptr;  // null: the backend takes host memory only
        Transport* on_host = nullptr;
        StreamWatch* watch = nullptr;  // with on_device
        std::int32_t rank = 0, world = 1;
        std::function<void()> look;  // throws when the group is broken
    };
    // The caller's side of a collective.
    struct Place {
        const DeviceStream& stream;
        const DeviceEvent& begin;  // where `stream` was when the collective was submitted
        std::shared_ptr<const void> memory;
        std::string what;
    };

    explicit DevicePath(Config config);

    // The result is there in the order of place.stream when this returns. scale_after: what the backend does not multiply
    // with; before an allreduce of floating-point numbers, after everything else.
    void run(ddp_collective collective, double scale_after, const Place& place);

private:
    void enqueue(const ddp_collective& collective, const Place& place);
    void run_alone(const ddp_collective& collective);
    void give_back_order(const Place& place) const;

    const Config config_;
    const StreamPtr stream_;
    std::optional<Staging> staging_;
};

}  // namespace libddp
