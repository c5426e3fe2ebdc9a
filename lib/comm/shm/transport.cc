#include "comm/shm/transport.h"

#include "comm/backend/alone.h"
#include "comm/shm/operations.h"
#include "util/host.h"
#include "util/options.h"

namespace libddp::shm {
namespace {

// Small enough that three slots stay in a core's cache, large enough that waiting for each other between chunks costs
// little.
constexpr std::size_t kStagingBytes = 256 << 10;

// Every rank compares itself with rank 0.
void require_one_host(const ddp_backend_host& host) {
    const std::string mine = host_id();
    ddp_backend_failure failure{};
    const auto check = [&](ddp_status status) {
        if (status != DDP_OK) throw Error(ErrorInfo{status, failure.message, failure.rank});
    };
    if (host.rank == 0) return check(host.store_set(host.handle, "host", mine.data(), mine.size(), &failure));
    void* value = nullptr;
    std::size_t size = 0;
    check(host.store_get(host.handle, "host", host.timeout_ms, &value, &size, &failure));
    const std::string first(static_cast<const char*>(value), size);
    host.store_value_free(value);
    if (first == mine) return;
    throw Error(ErrorInfo{DDP_ERROR_UNSUPPORTED,
                          str("rank ", host.rank,
                              " is not on the host of rank 0 (another boot or network namespace), and shm "
                              "works within one host; use backend 'auto' or 'hierarchical'"),
                          host.rank});
}

}  // namespace

Transport::Transport(const ddp_backend_host& host) {
    OptionReader(host.options, "backend_options of shm").finish();
    if (host.world_size == 1) return;
    require_one_host(host);
    team_ = std::make_unique<Team>(host, Team::Place{host.rank, host.world_size, "shm/", kStagingBytes}, failure_);
}

std::uint32_t Transport::capabilities() const {
    return DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC | DDP_BACKEND_COMPARES;
}

void Transport::run(const ddp_collective& c) {
    guarded([&] {
        if (!team_) return backend::run_alone(c);
        post(c);
        team_->meet(c);
        switch (c.kind) {
            case DDP_COLLECTIVE_ALLREDUCE:
                return allreduce(*team_, c);
            case DDP_COLLECTIVE_BROADCAST:
                return broadcast(*team_, c);
            case DDP_COLLECTIVE_ALLGATHER:
                return allgather(*team_, c);
            case DDP_COLLECTIVE_REDUCE_SCATTER:
                return reduce_scatter(*team_, c);
            default:
                return;  // a barrier is the meeting itself
        }
    });
}

bool Transport::ready(const ddp_collective& c, std::int64_t patience_ns) {
    if (!team_) return true;
    bool all_here = false;
    guarded([&] {
        post(c);
        all_here = team_->all_here(patience_ns);
    });
    return all_here;
}

// Unless ready() has done it.
void Transport::post(const ddp_collective& c) {
    if (team_->posted()) return;
    if (is_inline(*team_, c)) return team_->post(c, inline_bytes(*team_, c), {}, {});
    const std::size_t own = c.count * dtype_size(c.dtype);
    const std::size_t ranks = c.kind == DDP_COLLECTIVE_REDUCE_SCATTER ? static_cast<std::size_t>(team_->size()) : 1;
    Arena& arena = team_->arena();
    team_->post(c, 0, arena.locate(c.send, own * ranks), arena.locate(c.recv, own));
}

void Transport::abort() {
    fail_with({DDP_ERROR_ABORTED, "the group was aborted"});
}

void Transport::fail_with(const ErrorInfo& reason) {
    const ddp_status code = failure_.set(reason).code;
    // After a mismatch every rank finds out by itself, from what the others have posted.
    if (team_) team_->give_up(code != DDP_ERROR_MISMATCH);
}

void* Transport::allocate(std::size_t bytes) {
    return team_ ? team_->arena().allocate(bytes) : nullptr;
}

void Transport::deallocate(void* memory) {
    team_->arena().deallocate(memory);
}

template <class Operation>
void Transport::guarded(Operation operation) {
    failure_.check();
    try {
        operation();
    } catch (...) {
        fail_with(caught());
    }
    // Also an abort after the last byte: it promised that this call fails.
    failure_.check();
}

}  // namespace libddp::shm
