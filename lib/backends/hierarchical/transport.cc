#include "backends/hierarchical/transport.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "backends/common/adapter.h"
#include "backends/common/alone.h"
#include "backends/common/keys.h"
#include "backends/shm/operations.h"
#include "backends/tcp/transport.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"
#include "util/options.h"

namespace libddp::hierarchical {
namespace {

// Staging memory for messages that do not lie in shared memory.
constexpr std::size_t kStagingBytes = 1 << 20;
// How much longer a rank without a rail waits for the rails. Ranks with one know which connection
// failed, and say so within this time.
constexpr std::int64_t kRailsFirstMs = 2'000;

ddp_collective bytes_of(const ddp_collective& like, ddp_collective_kind kind, void* memory,
                        std::size_t bytes) {
    ddp_collective c = like;
    c.kind = kind;
    c.dtype = DDP_U8;
    c.op = DDP_SUM;
    c.root = 0;
    c.send = c.recv = memory;
    c.count = bytes;
    c.counts = nullptr;
    c.scale = 1;
    return c;
}

}  // namespace

HierarchicalTransport::HierarchicalTransport(const ddp_backend_host& host)
    : topology_(host.world_size == 1
                    ? backend::Topology({0}, 0)
                    : backend::find_topology(host, Deadline::after_ms(host.timeout_ms))) {
    capabilities_ = DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_COMPARES | DDP_BACKEND_DETERMINISTIC |
                    DDP_BACKEND_INTERRUPTIBLE | DDP_BACKEND_COUNTS | DDP_BACKEND_ALL_TO_ALL;
    if (host.world_size == 1) return;
    const shm::TeamOptions options{
        topology_.local_rank(), static_cast<int>(topology_.local_ranks().size()),
        str("host/", topology_.host(), "/"), kStagingBytes, topology_.local_ranks()};
    team_ = std::make_unique<shm::Team>(host, options, failure_);
    if (topology_.local_rank() < topology_.fewest())
        rail_ = std::make_unique<Rail>(host, tcp_backend(), topology_, topology_.local_rank());
    const std::uint32_t rails_can = what_rails_can(host);
    rails_fuse_scale_ = (rails_can & DDP_BACKEND_FUSES_SCALE) != 0;
    capabilities_ = DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_COMPARES | DDP_BACKEND_COUNTS |
                    DDP_BACKEND_ALL_TO_ALL |
                    (rails_can & (DDP_BACKEND_DETERMINISTIC | DDP_BACKEND_NEEDS_MATCH |
                                  DDP_BACKEND_INTERRUPTIBLE));
    // Ranks without a rail would not hear what it brings.
    if (topology_.fewest() == topology_.most()) capabilities_ |= rails_can & DDP_BACKEND_CARRIES;
}

// Ranks without a rail learn this from the first of their host, through the store. A wait for the
// team would not see that the group breaks, because nobody can abort a transport that is being
// made.
std::uint32_t HierarchicalTransport::what_rails_can(const ddp_backend_host& host) const {
    constexpr const char* kKey = "rails_can";
    const backend::Keys keys(host, str("host/", topology_.host(), "/"));
    if (rail_) {
        const std::uint32_t can = rail_->capabilities();
        if (leads() && team_->size() > topology_.fewest()) keys.set(kKey, std::to_string(can));
        return can;
    }
    try {
        return static_cast<std::uint32_t>(
            parse_int(keys.get(kKey, Deadline::after_ms(host.timeout_ms + kRailsFirstMs)), 0,
                      UINT32_MAX, kKey));
    } catch (const Error& error) {
        if (error.info().code != DDP_ERROR_TIMEOUT || error.info().rank >= 0) throw;
        const int first = topology_.local_ranks().front();
        throw Error(ErrorInfo{DDP_ERROR_TIMEOUT,
                              str("rank ", first, " did not connect with the other hosts in time"),
                              first});
    }
}

void HierarchicalTransport::run(const ddp_collective& c) {
    failure_.guard([&] { team_ ? dispatch(c) : backend::run_alone(c); },
                   [this](const ErrorInfo& info) { tell(info); });
}

void HierarchicalTransport::dispatch(ddp_collective c) {
    agree(c);
    c.carried = nullptr;
    switch (c.kind) {
        case DDP_COLLECTIVE_ALLREDUCE:
            return allreduce(c);
        case DDP_COLLECTIVE_BROADCAST:
            return broadcast(c);
        case DDP_COLLECTIVE_ALLGATHER:
            return allgather(c);
        case DDP_COLLECTIVE_REDUCE_SCATTER:
            return reduce_scatter(c);
        case DDP_COLLECTIVE_ALL_TO_ALL:
            return all_to_all(c);
        default:
            return barrier(c);
    }
}

// First the ranks of each host, then, on every rail, the hosts.
void HierarchicalTransport::agree(const ddp_collective& c) {
    ddp_collective meeting = c;
    meeting.kind = DDP_COLLECTIVE_BARRIER;
    meeting.counts = nullptr;
    on_host_do([&] { shm::perform(*team_, meeting); });
    if (rail_) rail_->match(c);
}

// The host's sum is rounded to the message's type before it goes on the wire. A sum of f16 is
// halved as often as keeps it finite, which loses nothing, and the rest of the scale comes with the
// sum over hosts.
void HierarchicalTransport::allreduce(const ddp_collective& c) {
    if (c.count == 0) return;
    ddp_collective local = c;
    local.signature_size = 0;
    local.scale = 1;
    if (c.dtype == DDP_F16 && c.scale != 1)
        local.scale = std::exp2(-std::ceil(std::log2(topology_.most())));
    const double rest = c.scale / local.scale;
    const shm::Between between{topology_.fewest(), [&](void* slice, std::size_t count) {
                                   ddp_collective outer = c;
                                   outer.send = outer.recv = slice;
                                   outer.count = count;
                                   outer.copied_bytes = nullptr;
                                   outer.scale = rails_fuse_scale_ ? rest : 1;
                                   rail_->run(outer);
                                   if (!rails_fuse_scale_)
                                       cpu::scale_copy(slice, slice, count, c.dtype, rest);
                               }};
    on_host_do([&] { shm::perform(*team_, local, &between); });
}

// To the first rank of the root's host, from there to those of the other hosts, and there to all.
void HierarchicalTransport::broadcast(const ddp_collective& c) {
    if (c.count == 0) return;
    const int host = topology_.host_of(c.root);
    const bool here = topology_.host() == host;
    const auto& ranks = topology_.local_ranks();
    ddp_collective local = c;
    local.root =
        here ? static_cast<int>(std::find(ranks.begin(), ranks.end(), c.root) - ranks.begin()) : 0;
    if (here) on_host(local);
    if (leads()) {
        ddp_collective outer = c;
        outer.root = host;
        outer.send = outer.recv;
        rail_->run(outer);
    }
    local.send = local.recv;
    if (!here) on_host(local);
}

// All that a host gives goes between hosts in one piece.
void HierarchicalTransport::allgather(const ddp_collective& c) {
    if (c.count == 0) return;
    std::vector<std::uint64_t> here, of_hosts(static_cast<std::size_t>(topology_.hosts()));
    for (int rank = 0; rank < topology_.world(); ++rank) {
        of_hosts[static_cast<std::size_t>(topology_.host_of(rank))] += part_bytes(c, rank);
        if (topology_.host_of(rank) == topology_.host()) here.push_back(part_bytes(c, rank));
    }
    std::vector<std::byte> all(all_parts(c, topology_.world()) * dtype_size(c.dtype));

    ddp_collective outer = bytes_of(c, DDP_COLLECTIVE_ALLGATHER, all.data(), all.size());
    outer.counts = of_hosts.data();
    outer.send = part_of(outer, all.data(), topology_.host());
    ddp_collective local =
        bytes_of(c, DDP_COLLECTIVE_ALLGATHER, const_cast<void*>(outer.send),
                 static_cast<std::size_t>(of_hosts[static_cast<std::size_t>(topology_.host())]));
    local.counts = here.data();
    local.send = c.send;
    on_host(local);
    if (leads()) rail_->run(outer);
    on_host(bytes_of(c, DDP_COLLECTIVE_BROADCAST, all.data(), all.size()));

    const std::byte* next = all.data();
    for (int host = 0; host < topology_.hosts(); ++host)
        for (const int rank : topology_.ranks(host)) {
            std::memcpy(part_of(c, c.recv, rank), next, part_bytes(c, rank));
            next += part_bytes(c, rank);
        }
}

// Everyone's part of an allreduce: twice the bytes that would be needed between hosts.
void HierarchicalTransport::reduce_scatter(const ddp_collective& c) {
    if (c.count == 0) return;
    ddp_collective whole = c;
    whole.kind = DDP_COLLECTIVE_ALLREDUCE;
    whole.count = all_parts(c, topology_.world());
    whole.counts = nullptr;
    whole.recv = const_cast<void*>(c.send);
    if (c.counts) return allreduce(whole);  // in place
    std::vector<std::byte> all(whole.count * dtype_size(c.dtype));
    whole.recv = all.data();
    allreduce(whole);
    const int rank = topology_.local_ranks()[static_cast<std::size_t>(topology_.local_rank())];
    std::memcpy(c.recv, part_of(c, all.data(), rank), part_bytes(c, rank));
}

// All ranks of this host have come: agree() has seen that.
void HierarchicalTransport::barrier(const ddp_collective& c) {
    ddp_collective plain = bytes_of(c, DDP_COLLECTIVE_BARRIER, nullptr, 0);
    if (leads()) rail_->run(plain);
    on_host(plain);
}

// One of the steps between the ranks of this host.
void HierarchicalTransport::on_host(ddp_collective c) {
    c.signature_size = 0;
    on_host_do([&] { shm::perform(*team_, c); });
}

// Ranks in errors of the team count on this host; those of a rail are the group's already.
template <class Operation>
void HierarchicalTransport::on_host_do(Operation operation) {
    try {
        operation();
    } catch (const shm::TeamError& error) {
        ErrorInfo info = error.info();
        if (info.rank >= 0)
            info.rank = topology_.local_ranks()[static_cast<std::size_t>(info.rank)];
        throw Error(std::move(info));
    }
}

void HierarchicalTransport::abort() {
    tell(failure_.set({DDP_ERROR_ABORTED, "the group was aborted"}));
}

void HierarchicalTransport::leave() {
    if (team_) team_->leave();
    rail_.reset();  // says goodbye
}

void HierarchicalTransport::tell(const ErrorInfo& failure) {
    if (team_) team_->give_up();
    // After a mismatch the ranks of other hosts find out by themselves, from what this one has
    // sent.
    if (rail_ && failure.code != DDP_ERROR_MISMATCH) rail_->abort();
}

}  // namespace libddp::hierarchical

namespace libddp {
namespace {

constexpr ddp_backend kBackend =
    backend::Adapter<hierarchical::HierarchicalTransport>::table("hierarchical");

}  // namespace

const ddp_backend* hierarchical_backend() {
    return &kBackend;
}

}  // namespace libddp
