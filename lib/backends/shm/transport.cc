#include "backends/shm/transport.h"

#include "backends/common/adapter.h"
#include "backends/common/alone.h"
#include "backends/common/topology.h"
#include "backends/shm/operations.h"
#include "util/options.h"

namespace libddp::shm {
namespace {

// Small enough that three slots stay in a core's cache, large enough that waiting for each other
// between chunks costs little.
constexpr std::size_t kStagingBytes = 256 << 10;

void require_one_host(const ddp_backend_host& host, const Deadline& deadline) {
    const auto topology = backend::find_topology(host, deadline);
    if (topology.hosts() == 1) return;
    const int other = topology.ranks(1).front();
    throw Error(
        ErrorInfo{DDP_ERROR_UNSUPPORTED,
                  str("rank ", other,
                      " is not on the host of rank 0 (another boot of the kernel, or another "
                      "network namespace), and shm works within one host; use backend 'auto' or "
                      "'hierarchical'"),
                  other});
}

}  // namespace

ShmTransport::ShmTransport(const ddp_backend_host& host) {
    OptionReader(host.options, "backend_options of shm").finish();
    if (host.world_size == 1) return;
    require_one_host(host, Deadline::after_ms(host.timeout_ms));
    team_ = std::make_unique<Team>(
        host, TeamOptions{host.rank, host.world_size, "shm/", kStagingBytes}, failure_);
}

std::uint32_t ShmTransport::capabilities() const {
    return DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC | DDP_BACKEND_COMPARES |
           DDP_BACKEND_INTERRUPTIBLE | DDP_BACKEND_COUNTS | DDP_BACKEND_GIVES |
           DDP_BACKEND_CARRIES | DDP_BACKEND_ALL_TO_ALL;
}

void ShmTransport::run(const ddp_collective& c) {
    guarded([&] { team_ ? perform(*team_, c) : backend::run_alone(c); });
}

bool ShmTransport::ready(const ddp_collective& c, std::int64_t patience_ns) {
    if (!team_) return true;
    bool all_here = false;
    guarded([&] {
        announce(*team_, c);
        all_here = team_->all_here(patience_ns);
    });
    return all_here;
}

void ShmTransport::abort() {
    failure_.set({DDP_ERROR_ABORTED, "the group was aborted"});
    if (team_) team_->give_up();
}

void ShmTransport::leave() {
    if (team_) team_->leave();
}

template <class Operation>
void ShmTransport::guarded(Operation operation) {
    failure_.guard(operation, [this](const ErrorInfo&) {
        if (team_) team_->give_up();
    });
}

}  // namespace libddp::shm

namespace libddp {
namespace {

constexpr ddp_backend kBackend = backend::Adapter<shm::ShmTransport>::table("shm");

}  // namespace

const ddp_backend* shm_backend() {
    return &kBackend;
}

}  // namespace libddp
