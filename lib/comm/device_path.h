// How a link carries out collectives on the memory of one device, on streams of its own: enqueued
// by a backend that takes such memory, through host memory by one that does not, and by itself
// where there is one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/signature.h"
#include "comm/stream_watch.h"
#include "comm/transport.h"
#include "device/scratch.h"
#include "device/stream.h"

namespace libddp {

// Factors around a collective that the backend only sums. 1: nothing to do.
struct Division {
    double before = 1, after = 1;
};

class DevicePath {
public:
    struct Config {
        ddp_device device{};
        std::shared_ptr<Transport> on_device{};  // null: the backend takes host memory only
        Transport* on_host = nullptr;
        StreamWatch* watch = nullptr;  // with on_device
        // Pinned memory that is not 0 once operations have no results any more, also those in
        // graphs, of whose launches nobody hears. Called for these only.
        std::function<std::shared_ptr<const std::uint32_t>()> spoiled{};
        std::int32_t rank = 0, world = 1;
        std::function<void()> look;  // throws when the group is broken
    };
    // Where a collective was submitted.
    struct Submitted {
        const DeviceStream& stream;
        const DeviceEvent& begin;  // where `stream` was when the collective was submitted
        std::shared_ptr<const void> memory;
        const Signature& what;
    };

    explicit DevicePath(Config config);
    ~DevicePath();

    // The result is there in the order of submitted.stream when this returns. A stream that is
    // captured into a graph: each launch of the graph does it again, with the same memory. division: the part of
    // a mean that the backend does not do.
    void run(ddp_collective collective, const Division& division, const Submitted& submitted);

private:
    class HostRelay;

    void keep_in_graph(std::shared_ptr<const void> memory) const;
    void spoil_if_broken(const ddp_collective& collective) const;
    void enqueue(const ddp_collective& collective, const Submitted& submitted, bool in_graph);
    void enqueue_broadcasts(const ddp_collective& collective, const Submitted& submitted,
                            bool in_graph);
    void run_alone(const ddp_collective& collective);
    void give_back_order(const Submitted& submitted) const;

    const Config config_;
    const StreamPtr stream_;
    ScratchMemory passing_;  // what another rank broadcasts, for an all_to_all
    // null: the backend takes device memory, or there is one rank
    std::unique_ptr<HostRelay> relay_;
};

}  // namespace libddp
