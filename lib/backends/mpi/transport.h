// One group over MPI.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "backends/common/failure.h"
#include "backends/mpi/channel.h"
#include "backends/mpi/group_comm.h"
#include "backends/mpi/settings.h"
#include "ddp/backend.h"

namespace libddp::mpi {

class MpiTransport {
public:
    explicit MpiTransport(const ddp_backend_host& host);
    ~MpiTransport();
    MpiTransport(const MpiTransport&) = delete;
    MpiTransport& operator=(const MpiTransport&) = delete;

    std::uint32_t capabilities() const;
    void run(const ddp_collective& collective);
    void abort();

private:
    void dispatch(const ddp_collective& collective, const Deadline& deadline);
    void allreduce(const ddp_collective& collective, const Deadline& deadline);

    const Settings settings_;
    std::atomic<bool> aborted_{false};
    backend::Failure failure_;
    std::optional<GroupComm> comm_;   // none when alone
    std::optional<Channel> channel_;  // goes first: what it has under way stays with MPI
};

}  // namespace libddp::mpi
