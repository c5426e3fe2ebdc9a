// Collectives of a backend that takes host memory only, on device memory: chunk after chunk is copied to pinned memory,
// reduced there, and copied back, so that copies in both directions and the backend work at the same time.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>

#include "comm/transport.h"
#include "ddp/backend.h"
#include "device/stream.h"

namespace libddp {

class Staging {
public:
    // down: the stream on which data comes to the host. look: throws when the group is broken.
    Staging(StreamPtr down, Transport& host, std::int32_t rank, std::int32_t world, std::function<void()> look);
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    // Returns when the backend is done and the rest is enqueued on up(). Ranks cut alike.
    void run(const ddp_collective& collective);
    // The stream on which results go back to the device.
    const DeviceStream& up() const { return *up_; }

private:
    struct Slot {
        std::shared_ptr<std::byte> memory;
        std::size_t bytes = 0;
        EventPtr fetched;  // the chunk has come to the host
        EventPtr free;     // its result is back on the device
    };
    // How a collective is cut: which part of each piece of the input and the output a chunk is.
    struct Cut;

    void make_room(const Cut& cut);
    void fetch(const Cut& cut, std::size_t chunk);
    void reduce(const Cut& cut, std::size_t chunk);
    void give_back(const Cut& cut, std::size_t chunk);
    void wait_for(const Cut& cut, const DeviceEvent& event) const;
    Slot& slot(std::size_t chunk) { return slots_[chunk % slots_.size()]; }

    const StreamPtr down_, up_;
    Transport& host_;
    const std::size_t rank_, world_;
    const std::function<void()> look_;
    std::array<Slot, 3> slots_;
};

}  // namespace libddp
