#include "backends/tcp/transport.h"

#include "backends/common/adapter.h"
#include "backends/common/alone.h"
#include "backends/common/direct.h"
#include "backends/tcp/operations.h"
#include "util/error.h"

namespace libddp::tcp {

TcpTransport::TcpTransport(const ddp_backend_host& host)
    : world_size_(host.world_size), settings_(read_settings(host)) {
    if (world_size_ == 1) return;
    mesh_ = std::make_unique<Mesh>(host, settings_, failure_);
    exchange_ = std::make_unique<Exchange>(*mesh_);
}

TcpTransport::~TcpTransport() {
    if (!mesh_) return;
    // After a mismatch peers may still be finding out, and a broken connection would hide the
    // reason from them.
    const bool in_order = !failure_.failed() || failure_.get().code == DDP_ERROR_MISMATCH;
    if (!in_order) return;
    mesh_->say_goodbye();
    mesh_->close_later();
}

std::uint32_t TcpTransport::capabilities() const {
    constexpr std::uint32_t kAlways = DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_COMPARES |
                                      DDP_BACKEND_INTERRUPTIBLE | DDP_BACKEND_COUNTS |
                                      DDP_BACKEND_CARRIES | DDP_BACKEND_ALL_TO_ALL;
    const bool deterministic = settings_.algorithm == Algorithm::kDirect || world_size_ <= 2;
    return deterministic ? kAlways | DDP_BACKEND_DETERMINISTIC : kAlways;
}

void TcpTransport::run(const ddp_collective& c) {
    guarded([&] {
        if (world_size_ == 1)
            backend::run_alone(c);
        else
            dispatch(c, Deadline::after_ms(c.timeout_ms));
        if (mesh_) mesh_->look_at_delivery();
    });
}

void TcpTransport::dispatch(const ddp_collective& c, const Deadline& deadline) {
    if (c.kind == DDP_COLLECTIVE_BARRIER || c.count == 0) return exchange_->compare(c, deadline);
    const Bench bench{*mesh_, *exchange_, memory_};
    const bool direct = mesh_->full() && settings_.algorithm == Algorithm::kDirect;
    switch (c.kind) {
        case DDP_COLLECTIVE_ALLREDUCE:
            return direct ? backend::direct_allreduce(bench, c, deadline)
                          : ring_allreduce(bench, c, deadline);
        case DDP_COLLECTIVE_BROADCAST:
            return broadcast(bench, c, deadline);
        case DDP_COLLECTIVE_ALLGATHER:
            return allgather(bench, c, deadline);
        case DDP_COLLECTIVE_REDUCE_SCATTER:
            return direct ? backend::direct_reduce_scatter(bench, c, deadline)
                          : ring_reduce_scatter(bench, c, deadline);
        case DDP_COLLECTIVE_ALL_TO_ALL:
            return mesh_->full() ? backend::direct_all_to_all(bench, c, deadline)
                                 : all_to_all_in_rounds(bench, c, deadline);
        default:
            fail(DDP_ERROR_UNSUPPORTED, "unknown collective ", c.kind);
    }
}

void TcpTransport::match(const void* mine, void* theirs, std::size_t size,
                         std::int64_t timeout_ms) {
    ddp_collective c{};
    c.struct_size = sizeof c;
    c.kind = DDP_COLLECTIVE_BARRIER;
    c.signature = mine;
    c.signature_size = size;
    c.theirs = theirs;
    guarded([&] {
        if (world_size_ > 1) exchange_->compare(c, Deadline::after_ms(timeout_ms));
    });
}

void TcpTransport::abort() {
    failure_.set({DDP_ERROR_ABORTED, "the group was aborted"});
    if (mesh_) mesh_->shut_down();
}

template <class Operation>
void TcpTransport::guarded(Operation operation) {
    failure_.guard(operation, [this](const ErrorInfo& info) {
        // After a mismatch every rank finds it out for itself, from messages that closing might
        // destroy. All other failures are passed on by closing. Either way nothing of this
        // operation touches its memory any more.
        if (mesh_) mesh_->forget();
        if (mesh_ && info.code != DDP_ERROR_MISMATCH) mesh_->shut_down();
    });
}

}  // namespace libddp::tcp

namespace libddp {
namespace {

// match() is for rails: run() compares.
constexpr ddp_backend kBackend = backend::Adapter<tcp::TcpTransport>::table("tcp");

}  // namespace

const ddp_backend* tcp_backend() {
    return &kBackend;
}

void check_tcp_options(const ddp_backend_host& host) {
    tcp::read_settings(host);
}

}  // namespace libddp
