#include "backends/nccl/transport.h"

#include <vector>

#include "backends/common/adapter.h"
#include "backends/nccl/collectives.h"
#include "backends/nccl/memory.h"
#include "backends/nccl/rank_gpu.h"
#include "ddp/backend.h"
#include "device/cuda/check.h"

namespace libddp::cuda {
namespace {

constexpr int kAllocatesExactly = 22602;  // NCCL 2.26.2

}  // namespace

NcclTransport::NcclTransport(const ddp_backend_host& host) : host_(host), settings_(read_settings(host)) {
    device_count();
    const Nccl& library = nccl();
    if (host.rank == 0) host.log(host.handle, 3, str("NCCL ", nccl_version_text(library.version)).c_str());
}

std::uint32_t NcclTransport::capabilities() const {
    std::uint32_t flags = DDP_BACKEND_CUDA | DDP_BACKEND_DEVICE_ONLY;
    if (settings_.direct) flags |= DDP_BACKEND_DETERMINISTIC;
    if (settings_.direct || settings_.averages) flags |= DDP_BACKEND_FUSES_SCALE;
    return flags;
}

void NcclTransport::run(const ddp_collective& c) {
    failure_.check();
    try {
        if (c.device.kind != DDP_DEVICE_CUDA)
            fail(DDP_ERROR_UNSUPPORTED, "memory of the host is not for the backend nccl");
        dispatch(c, Deadline::after_ms(c.timeout_ms));
    } catch (...) {
        failure_.set(caught());  // the first one stands
    }
    failure_.check();
}

void NcclTransport::dispatch(const ddp_collective& c, const Deadline& deadline) {
    if (c.count == 0 || c.kind == DDP_COLLECTIVE_BARRIER) return;
    const auto communicator = on(c.device.index, deadline);
    const OnDevice current(c.device.index);
    const BesideCaptures beside;
    const Channel channel{*communicator, host_.rank, host_.world_size};
    const bool native = !settings_.direct && nccl_can_reduce(c.dtype, c.op);
    switch (c.kind) {
        case DDP_COLLECTIVE_ALLREDUCE:
            return native ? nccl_allreduce(channel, c, deadline) : direct_allreduce(channel, c, deadline);
        case DDP_COLLECTIVE_REDUCE_SCATTER:
            return native ? nccl_reduce_scatter(channel, c, deadline) : direct_reduce_scatter(channel, c, deadline);
        case DDP_COLLECTIVE_BROADCAST:
            return broadcast(channel, c, deadline);
        case DDP_COLLECTIVE_ALLGATHER:
            return allgather(channel, c, deadline);
        default:
            fail(DDP_ERROR_UNSUPPORTED, "unknown collective ", c.kind);
    }
}

std::shared_ptr<Communicator> NcclTransport::find(int device) {
    const std::lock_guard lock(mutex_);
    const auto found = communicators_.find(device);
    return found == communicators_.end() ? nullptr : found->second;
}

std::shared_ptr<Communicator> NcclTransport::on(int device, const Deadline& deadline) {
    if (auto known = find(device)) return known;
    const std::lock_guard creating(creating_);
    if (auto known = find(device)) return known;
    std::size_t number = 0;
    {
        const std::lock_guard lock(mutex_);
        number = communicators_.size();
    }
    auto created =
        std::make_shared<Communicator>(host_, static_cast<int>(number), device, deadline, [this] { failure_.check(); });
    {
        const std::lock_guard lock(mutex_);
        communicators_.emplace(device, created);
    }
    if (failure_.failed()) created->abort();  // an abort that came before it was found there
    return created;
}

void NcclTransport::check_enqueued() {
    std::vector<std::shared_ptr<Communicator>> all;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [device, communicator] : communicators_) all.push_back(communicator);
    }
    failure_.check();
    try {
        for (const auto& communicator : all) communicator->check_enqueued();
    } catch (...) {
        failure_.set(caught());
    }
    failure_.check();
}

void NcclTransport::abort() {
    failure_.set({DDP_ERROR_ABORTED, "the group was aborted"});
    const std::lock_guard lock(mutex_);
    for (const auto& [device, communicator] : communicators_) communicator->abort();
}

void* NcclTransport::allocate(std::size_t bytes, const ddp_device& device) {
    if (!settings_.registers || host_.world_size == 1 || device.kind != DDP_DEVICE_CUDA) return nullptr;
    // Before, each bucket takes a multiple of what a multicast object does: 512 MiB on an H100.
    if (nccl().version < kAllocatesExactly) return nullptr;
    failure_.check();
    const Deadline deadline = Deadline::after_ms(host_.timeout_ms);
    const auto communicator = on(device.index, deadline);
    const OnDevice current(device.index);
    const BesideCaptures beside;
    void* memory = allocate_zeroed_for_nccl(bytes);
    if (!memory) return nullptr;
    try {
        void* const handle = register_memory(*communicator, memory, bytes, deadline);
        const std::lock_guard lock(mutex_);
        registered_[memory] = {communicator, handle};
    } catch (...) {
        free_for_nccl(memory);
        throw;
    }
    return memory;
}

void NcclTransport::deallocate(void* memory) {
    Registered registered;
    {
        const std::lock_guard lock(mutex_);
        registered = std::move(registered_.extract(memory).mapped());
    }
    const OnDevice current(registered.communicator->device());
    const BesideCaptures beside;
    if (registered.handle) unregister_memory(*registered.communicator, registered.handle);
    free_for_nccl(memory);
}

// The door to NCCL: the table of C functions that libddp finds in libddp-cuda.so.

namespace {

using Adapter = backend::Adapter<NcclTransport>;

ddp_status allocate(void* handle, std::size_t bytes, ddp_device device, void** memory, ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { *memory = Adapter::of(handle).allocate(bytes, device); });
}

void deallocate(void* handle, void* memory) {
    ddp_backend_failure ignored{};
    Adapter::guarded(&ignored, [&] { Adapter::of(handle).deallocate(memory); });
}

ddp_status check_enqueued(void* handle, ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { Adapter::of(handle).check_enqueued(); });
}

constexpr ddp_backend kBackend = {
    sizeof(ddp_backend),
    DDP_BACKEND_ABI_VERSION,
    0,
    "nccl",
    Adapter::create,
    Adapter::destroy,
    Adapter::capabilities,
    Adapter::abort,
    Adapter::run,
    nullptr,  // libddp compares ranks over the host
    allocate,
    deallocate,
    nullptr,  // nobody waits in run() anyway
    check_enqueued,
};

}  // namespace
}  // namespace libddp::cuda

extern "C" DDP_API const ddp_backend* ddp_backend_entry(void) {
    return &libddp::cuda::kBackend;
}

extern "C" DDP_API ddp_status ddp_backend_usable(ddp_backend_failure* failure) {
    return libddp::cuda::Adapter::guarded(failure, [] {
        libddp::cuda::device_count();
        libddp::cuda::nccl();
    });
}
