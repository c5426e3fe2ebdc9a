#include "backends/shm/transport.h"

#include "backends/common/adapter.h"
#include "backends/common/alone.h"
#include "backends/common/topology.h"
#include "backends/shm/operations.h"
#include "util/options.h"

namespace libddp::shm {
namespace {

// Small enough that three slots stay in a core's cache, large enough that waiting for each other between chunks costs
// little.
constexpr std::size_t kStagingBytes = 256 << 10;

void require_one_host(const ddp_backend_host& host, const Deadline& deadline) {
    const auto topology = backend::find_topology(host, deadline);
    if (topology.hosts() == 1) return;
    const int other = topology.ranks(1).front();
    throw Error(
        ErrorInfo{DDP_ERROR_UNSUPPORTED,
                  str("rank ", other,
                      " is not on the host of rank 0 (another boot of the kernel, or another "
                      "network namespace), and shm works within one host; use backend 'auto' or 'hierarchical'"),
                  other});
}

}  // namespace

ShmTransport::ShmTransport(const ddp_backend_host& host) {
    OptionReader(host.options, "backend_options of shm").finish();
    if (host.world_size == 1) return;
    require_one_host(host, Deadline::after_ms(host.timeout_ms));
    team_ = std::make_unique<Team>(host, Team::Options{host.rank, host.world_size, "shm/", kStagingBytes}, failure_);
}

std::uint32_t ShmTransport::capabilities() const {
    return DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC | DDP_BACKEND_COMPARES | DDP_BACKEND_INTERRUPTIBLE;
}

void ShmTransport::run(const ddp_collective& c) {
    guarded([&] {
        if (!team_) return backend::run_alone(c);
        perform(*team_, c);
    });
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
    fail_with({DDP_ERROR_ABORTED, "the group was aborted"});
}

void ShmTransport::leave() {
    if (team_) team_->leave();
}

void ShmTransport::fail_with(const ErrorInfo& reason) {
    failure_.set(reason);
    if (team_) team_->give_up();
}

void ShmTransport::check_failure() const {
    if (team_) team_->check_failure();
    failure_.check();
}

void* ShmTransport::allocate(std::size_t bytes) {
    return team_ ? team_->arena().allocate(bytes) : nullptr;
}

void ShmTransport::deallocate(void* memory) {
    team_->arena().deallocate(memory);
}

template <class Operation>
void ShmTransport::guarded(Operation operation) {
    check_failure();
    try {
        operation();
    } catch (...) {
        fail_with(caught());
    }
    // Also an abort after the last byte: it promised that this call fails.
    check_failure();
}

}  // namespace libddp::shm

namespace libddp {
namespace {

using Adapter = backend::Adapter<shm::ShmTransport>;

ddp_status allocate(void* handle, std::size_t bytes, ddp_device, void** memory, ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { *memory = Adapter::of(handle).allocate(bytes); });
}

void deallocate(void* handle, void* memory) {
    ddp_backend_failure ignored{};
    Adapter::guarded(&ignored, [&] { Adapter::of(handle).deallocate(memory); });
}

ddp_status ready(void* handle, const ddp_collective* collective, std::int64_t patience_ns, std::int32_t* all_here,
                 ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { *all_here = Adapter::of(handle).ready(*collective, patience_ns); });
}

constexpr ddp_backend kBackend = {
    sizeof(ddp_backend),
    DDP_BACKEND_ABI_VERSION,
    0,
    "shm",
    Adapter::create,
    Adapter::destroy,
    Adapter::capabilities,
    Adapter::abort,
    Adapter::run,
    nullptr,  // run() compares
    allocate,
    deallocate,
    ready,
    nullptr,
    Adapter::leave,
};

}  // namespace

const ddp_backend* shm_backend() {
    return &kBackend;
}

}  // namespace libddp
