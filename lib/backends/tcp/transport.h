// One rank's end of one group.
#pragma once

#include <cstdint>
#include <memory>

#include "backends/common/failure.h"
#include "backends/tcp/exchange.h"
#include "backends/tcp/mesh.h"
#include "backends/tcp/settings.h"
#include "ddp/backend.h"
#include "device/scratch.h"

namespace libddp::tcp {

// The first failure ends the transport: every later call throws the same error.
class TcpTransport {
public:
    explicit TcpTransport(const ddp_backend_host& host);
    ~TcpTransport();
    TcpTransport(const TcpTransport&) = delete;
    TcpTransport& operator=(const TcpTransport&) = delete;

    std::uint32_t capabilities() const;

    // Both throw Error.
    void run(const ddp_collective& collective);
    // Throws MISMATCH with the other rank in the error and its bytes in `theirs`.
    void match(const void* mine, void* theirs, std::size_t size, std::int64_t timeout_ms);

    // Any thread, at any time.
    void abort();

private:
    void dispatch(const ddp_collective& c, const Deadline& deadline);
    template <class Operation>
    void guarded(Operation operation);

    const int world_size_;
    const Settings settings_;
    backend::Failure failure_;
    // Null in a world of one, which needs no sockets.
    std::unique_ptr<Mesh> mesh_;
    std::unique_ptr<Exchange> exchange_;
    ScratchMemory memory_;
};

}  // namespace libddp::tcp

namespace libddp {

// The backend "tcp": collectives between hosts, over connections that are authenticated and, unless
// an option says otherwise, encrypted.
const ddp_backend* tcp_backend();

// Throws INVALID_ARGUMENT, as create would, where host.options are not ones that tcp knows.
void check_tcp_options(const ddp_backend_host& host);

}  // namespace libddp
