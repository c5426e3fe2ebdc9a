// One group over MPI, and the table of C functions that libddp finds in libddp-mpi.so.
#include <atomic>
#include <cstdint>
#include <optional>

#include "backends/common/adapter.h"
#include "backends/common/alone.h"
#include "backends/common/failure.h"
#include "backends/mpi/channel.h"
#include "backends/mpi/collectives.h"
#include "backends/mpi/group_comm.h"
#include "backends/mpi/process.h"
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

MpiTransport::MpiTransport(const ddp_backend_host& host) : settings_(read_settings(host)) {
    if (host.world_size == 1) return;
    const Deadline deadline = Deadline::after_ms(host.timeout_ms);
    Driver& driver = Process::instance().driver(host, deadline);
    Process::instance().allow_finalizing(settings_.finalize_timeout_ms);
    comm_.emplace(driver, host, deadline);
    channel_.emplace(Channel{driver, comm_->get(), host.rank, host.world_size, aborted_, host});
}

MpiTransport::~MpiTransport() {
    if (!comm_ || !failure_.failed()) return;
    comm_->abandon();
    Process::instance().expect_leavers();
}

std::uint32_t MpiTransport::capabilities() const {
    // A collective of Open MPI writes past the end of memory when another rank sends more than it
    // expects.
    std::uint32_t flags = DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_NEEDS_MATCH |
                          DDP_BACKEND_INTERRUPTIBLE | DDP_BACKEND_COUNTS | DDP_BACKEND_ALL_TO_ALL;
    if (settings_.algorithm == Algorithm::kDirect || !channel_) flags |= DDP_BACKEND_DETERMINISTIC;
    if (channel_ && channel_->driver.needs_caller()) flags |= DDP_BACKEND_CALLER_THREAD;
    return flags;
}

void MpiTransport::run(const ddp_collective& c) {
    failure_.guard(
        [&] { channel_ ? dispatch(c, Deadline::after_ms(c.timeout_ms)) : backend::run_alone(c); },
        [](const ErrorInfo&) {});
}

void MpiTransport::abort() {
    failure_.set({DDP_ERROR_ABORTED, "the group was aborted"});
    aborted_ = true;
    if (channel_) channel_->driver.wake();
}

void MpiTransport::dispatch(const ddp_collective& c, const Deadline& deadline) {
    if (c.kind == DDP_COLLECTIVE_BARRIER) return barrier(*channel_, deadline);
    if (c.count == 0) return;
    switch (c.kind) {
        case DDP_COLLECTIVE_ALLREDUCE:
            return allreduce(c, deadline);
        case DDP_COLLECTIVE_BROADCAST:
            return broadcast(*channel_, c, deadline);
        case DDP_COLLECTIVE_ALLGATHER:
            return allgather(*channel_, c, deadline);
        case DDP_COLLECTIVE_REDUCE_SCATTER:
            return direct_reduce_scatter(*channel_, c, deadline);
        case DDP_COLLECTIVE_ALL_TO_ALL:
            return all_to_all(*channel_, c, deadline);
        default:
            fail(DDP_ERROR_UNSUPPORTED, "unknown collective ", c.kind);
    }
}

void MpiTransport::allreduce(const ddp_collective& c, const Deadline& deadline) {
    if (settings_.algorithm == Algorithm::kMpi && mpi_can_reduce(c.dtype, c.op))
        mpi_allreduce(*channel_, c, deadline);
    else
        direct_allreduce(*channel_, c, deadline);
}

}  // namespace libddp::mpi

namespace {

constexpr ddp_backend kBackend = libddp::backend::Adapter<libddp::mpi::MpiTransport>::table("mpi");

}  // namespace

extern "C" DDP_API const ddp_backend* ddp_backend_entry(void) {
    return &kBackend;
}
