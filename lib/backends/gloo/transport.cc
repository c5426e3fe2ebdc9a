#include "backends/gloo/transport.h"

#include <gloo/common/error.h>

#include <cstring>
#include <string>

#include "backends/common/adapter.h"
#include "backends/common/address.h"
#include "backends/common/alone.h"
#include "backends/gloo/connect.h"
#include "backends/gloo/signals.h"
#include "util/descriptors.h"

namespace libddp::gloo_tcp {
namespace {

// Gloo begins its messages with a file and a line of its own source.
std::string without_location(const std::string& message) {
    const auto end = message.find("] ");
    return message.starts_with('[') && end != std::string::npos ? message.substr(end + 2) : message;
}

}  // namespace

GlooTransport::GlooTransport(const ddp_backend_host& host)
    : world_size_(host.world_size), settings_(read_settings(host)) {
    if (world_size_ == 1) return;
    // Where one is missing in the middle, Gloo may end the process. A loop needs 6, and each peer
    // one.
    require_descriptors(
        static_cast<std::size_t>(settings_.lanes) * static_cast<std::size_t>(world_size_ + 5),
        "Gloo");
    const Deadline deadline = Deadline::after_ms(host.timeout_ms);
    const std::string address = backend::choose_address(host, settings_.network, deadline);
    mesh_ = std::make_unique<Mesh>(host, address, deadline);
    for (int number = 1; number < settings_.lanes; ++number)
        sides_.push_back(std::make_unique<SideMesh>(host, address, deadline, number, *mesh_));
    try {
        sentinel_ = std::make_unique<Sentinel>(*mesh_);
        exchange_ = std::make_unique<Exchange>(*mesh_);
    } catch (const ::gloo::IoException& error) {
        // Another rank has failed since it connected, and has closed its connections.
        throw Error(ErrorInfo{DDP_ERROR_RANK_FAILED,
                              "a rank went away: " + without_location(error.what())});
    }
    if (settings_.algorithm != Algorithm::kDirect) watchdog_ = std::make_unique<Watchdog>(*mesh_);
}

GlooTransport::~GlooTransport() {
    if (!mesh_) return;
    // After a mismatch, too: peers may still be finding out, and a broken connection would hide the
    // reason from them.
    if (!failure_.failed() || failure_.get().code == DDP_ERROR_MISMATCH) sentinel_->say_goodbye();
    mesh_->poison();
}

void GlooTransport::run(const ddp_collective& c) {
    const Deadline deadline = Deadline::after_ms(c.timeout_ms);
    guarded(deadline, [&] {
        if (world_size_ == 1)
            backend::run_alone(c);
        else
            dispatch(c, deadline);
    });
}

void GlooTransport::dispatch(const ddp_collective& c, const Deadline& deadline) {
    if (c.kind == DDP_COLLECTIVE_BARRIER) return barrier(deadline);
    if (c.count == 0) return;
    switch (c.kind) {
        case DDP_COLLECTIVE_ALLREDUCE:
            if (settings_.algorithm == Algorithm::kDirect)
                return allreduce_over_meshes(*mesh_, memory_, sides_, c, deadline);
            return gloo_allreduce(*mesh_, *watchdog_, settings_.algorithm, c, deadline);
        case DDP_COLLECTIVE_BROADCAST:
            return broadcast(*mesh_, c, deadline);
        case DDP_COLLECTIVE_ALLGATHER:
            return allgather(*mesh_, c, deadline);
        case DDP_COLLECTIVE_REDUCE_SCATTER:
            return direct_reduce_scatter(*mesh_, memory_, c, deadline);
        case DDP_COLLECTIVE_ALL_TO_ALL:
            return all_to_all(*mesh_, memory_, c, deadline);
        default:
            fail(DDP_ERROR_UNSUPPORTED, "unknown collective ", c.kind);
    }
}

void GlooTransport::barrier(const Deadline& deadline) {
    static constexpr char kBarrier[] = "barrier";
    if (auto difference = exchange_->compare(kBarrier, sizeof kBarrier, deadline))
        throw Error(ErrorInfo{DDP_ERROR_MISMATCH,
                              str("rank ", difference->rank, " is not in the barrier that rank ",
                                  mesh_->rank(), " is in"),
                              difference->rank});
}

void GlooTransport::match(const void* mine, void* theirs, std::size_t size,
                          std::int64_t timeout_ms) {
    if (size > Exchange::kMaxBytes)
        fail(DDP_ERROR_INTERNAL, "a signature of ", size, " bytes is too long");
    const Deadline deadline = Deadline::after_ms(timeout_ms);
    guarded(deadline, [&] {
        if (world_size_ == 1) return;
        if (auto difference = exchange_->compare(mine, size, deadline)) {
            std::memcpy(theirs, difference->bytes.data(), size);
            throw Error(ErrorInfo{DDP_ERROR_MISMATCH,
                                  str("rank ", difference->rank,
                                      " is about to do something else than rank ", mesh_->rank()),
                                  difference->rank});
        }
    });
}

void GlooTransport::abort() {
    failure_.set({DDP_ERROR_ABORTED, "the group was aborted"});
    if (mesh_) mesh_->poison();
}

// The connection that broke first says little about the cause: survivors close theirs too, to tell
// the others.
ErrorInfo GlooTransport::lost_peer(const std::string& detail) const {
    const int departed = sentinel_->departed();
    if (departed >= 0)
        return {DDP_ERROR_RANK_FAILED, str("rank ", departed, " left the group"), departed};
    return {DDP_ERROR_RANK_FAILED, "a rank went away: " + detail};
}

template <class Operation>
void GlooTransport::guarded(const Deadline& deadline, Operation operation) {
    const auto in_our_words = [&] {
        try {
            operation();
        } catch (const Error&) {
            throw;
        } catch (const std::bad_alloc&) {
            throw;
        } catch (const std::exception& error) {
            if (deadline.expired())
                fail(DDP_ERROR_TIMEOUT, "the collective did not finish before its timeout");
            throw Error(lost_peer(without_location(error.what())));
        }
    };
    failure_.guard(in_our_words, [this](const ErrorInfo& info) {
        // After a mismatch every rank finds it out by itself, from messages that closing might
        // destroy. All other failures are passed on by closing. Either way nothing of this
        // operation touches the caller's memory any more.
        if (mesh_ && info.code != DDP_ERROR_MISMATCH) mesh_->poison();
    });
}

}  // namespace libddp::gloo_tcp

namespace libddp {
namespace {

// SIGPIPE stays inside every call.
constexpr ddp_backend kBackend =
    backend::Adapter<gloo_tcp::GlooTransport, gloo_tcp::SigpipeGuard>::table("gloo");

}  // namespace

const ddp_backend* gloo_backend() {
    return &kBackend;
}

}  // namespace libddp
