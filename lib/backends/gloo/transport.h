// One rank's end of one group.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/common/failure.h"
#include "backends/gloo/exchange.h"
#include "backends/gloo/mesh.h"
#include "backends/gloo/operations.h"
#include "backends/gloo/sentinel.h"
#include "backends/gloo/settings.h"
#include "backends/gloo/side_mesh.h"
#include "backends/gloo/watchdog.h"
#include "ddp/backend.h"
#include "device/scratch.h"
#include "util/error.h"

namespace libddp::gloo_tcp {

// The first failure ends the transport: every later call throws the same error.
class GlooTransport {
public:
    explicit GlooTransport(const ddp_backend_host& host);
    ~GlooTransport();
    GlooTransport(const GlooTransport&) = delete;
    GlooTransport& operator=(const GlooTransport&) = delete;

    std::uint32_t capabilities() const { return capabilities_of(settings_.algorithm, world_size_); }

    // Both throw Error.
    void run(const ddp_collective& collective);
    // Throws MISMATCH with the other rank in the error and its bytes in `theirs`.
    void match(const void* mine, void* theirs, std::size_t size, std::int64_t timeout_ms);

    // Any thread, at any time.
    void abort();

private:
    void dispatch(const ddp_collective& c, const Deadline& deadline);
    void barrier(const Deadline& deadline);
    ErrorInfo lost_peer(const std::string& detail) const;
    template <class Operation>
    void guarded(const Deadline& deadline, Operation operation);

    const int world_size_;
    const Settings settings_;
    // Null in a world of one, which needs no sockets.
    std::unique_ptr<Mesh> mesh_;
    SideMeshes sides_;
    std::unique_ptr<Sentinel> sentinel_;
    std::unique_ptr<Exchange> exchange_;
    std::unique_ptr<Watchdog> watchdog_;
    ScratchMemory memory_;
    backend::Failure failure_;
};

}  // namespace libddp::gloo_tcp

namespace libddp {

// The Gloo backend: collectives between hosts over TCP.
const ddp_backend* gloo_backend();

}  // namespace libddp
