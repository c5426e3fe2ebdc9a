// One group over NCCL, and the table of C functions that libddp finds in libddp-cuda.so.
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "backends/common/adapter.h"
#include "backends/common/failure.h"
#include "backends/nccl/collectives.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/rank_gpu.h"
#include "backends/nccl/settings.h"
#include "ddp/backend.h"
#include "device/cuda/check.h"
#include "util/mutex.h"

namespace libddp::cuda {
namespace {

constexpr int kAllocatesExactly = 22602;  // NCCL 2.26.2
constexpr std::int64_t kUnregisterMs = 100;

// Zeroes on a stream of its own, so that no other is waited for.
bool zero(void* memory, std::size_t bytes) {
    cudaStream_t stream = nullptr;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return false;
    const bool done = cudaMemsetAsync(memory, 0, bytes, stream) == cudaSuccess &&
                      cudaStreamSynchronize(stream) == cudaSuccess;
    cudaStreamDestroy(stream);
    return done;
}

// Memory that NCCL reads and writes without copies of its own, where the hardware can. On the
// current device, ready for every stream. Null if NCCL has none.
void* allocate_zeroed_for_nccl(std::size_t bytes) {
    void* memory = nullptr;
    const bool there = nccl().ncclMemAlloc(&memory, bytes) == ncclSuccess && memory;
    if (there && zero(memory, bytes)) return memory;
    if (there) nccl().ncclMemFree(memory);
    cudaGetLastError();
    return nullptr;
}

void free_for_nccl(void* memory) {
    nccl().ncclMemFree(memory);
}

// Null if it cannot be registered, which costs speed alone. Throws if the communicator is broken.
void* register_memory(Communicator& communicator, void* memory, std::size_t bytes,
                      const Deadline& deadline) {
    void* handle = nullptr;
    communicator.enqueue("registering a bucket", deadline, [&](ncclComm_t comm) {
        const ncclResult_t result = nccl().ncclCommRegister(comm, memory, bytes, &handle);
        if (result == ncclSuccess || result == ncclInProgress) return result;
        handle = nullptr;
        return ncclSuccess;
    });
    return handle;
}

// Does nothing if the communicator has ended: its registrations have, too.
void unregister_memory(Communicator& communicator, void* handle) {
    try {
        communicator.enqueue(
            "releasing a bucket", Deadline::after_ms(kUnregisterMs),
            [&](ncclComm_t comm) { return nccl().ncclCommDeregister(comm, handle); });
    } catch (const Error&) {
        // The communicator has ended.
    }
}

}  // namespace

// A rank may have parameters on several devices. Its first collective on a device connects that
// with the device that each other rank uses in the same collective.
class NcclTransport {
public:
    explicit NcclTransport(const ddp_backend_host& host);

    std::uint32_t capabilities() const;
    void run(const ddp_collective& collective);
    void check_enqueued();
    void abort();

    // Null where NCCL has no better memory than anybody.
    void* allocate(std::size_t bytes, const ddp_device& device);
    void deallocate(void* memory);

private:
    struct Registered {
        std::shared_ptr<Communicator> communicator;
        void* handle;  // null: not registered
    };

    template <class Operation>
    void guarded(Operation operation) {
        failure_.guard(operation, [](const ErrorInfo&) {});
    }
    void dispatch(const ddp_collective& collective, const Deadline& deadline);
    std::shared_ptr<Communicator> on(int device, const Deadline& deadline);
    std::shared_ptr<Communicator> find(int device);

    const ddp_backend_host& host_;
    const Settings settings_;
    backend::Failure failure_;
    Mutex creating_;  // held while a communicator is created, and so for long
    Mutex mutex_;
    std::map<int, std::shared_ptr<Communicator>> communicators_ DDP_GUARDED_BY(mutex_);
    std::map<void*, Registered> registered_ DDP_GUARDED_BY(mutex_);
};

NcclTransport::NcclTransport(const ddp_backend_host& host)
    : host_(host), settings_(read_settings(host)) {
    device_count();
    const Nccl& library = nccl();
    if (host.rank == 0)
        host.log(host.handle, 3, str("NCCL ", nccl_version_text(library.version)).c_str());
}

std::uint32_t NcclTransport::capabilities() const {
    std::uint32_t flags =
        DDP_BACKEND_CUDA | DDP_BACKEND_DEVICE_ONLY | DDP_BACKEND_COUNTS | DDP_BACKEND_ALL_TO_ALL;
    if (settings_.direct) flags |= DDP_BACKEND_DETERMINISTIC;
    if (settings_.direct || settings_.averages) flags |= DDP_BACKEND_FUSES_SCALE;
    // The other way needs memory of its own in each operation.
    if (!settings_.direct) flags |= DDP_BACKEND_CAPTURES;
    return flags;
}

void NcclTransport::run(const ddp_collective& c) {
    guarded([&] {
        if (c.device.kind != DDP_DEVICE_CUDA)
            fail(DDP_ERROR_UNSUPPORTED, "memory of the host is not for the backend nccl");
        dispatch(c, Deadline::after_ms(c.timeout_ms));
    });
}

void NcclTransport::dispatch(const ddp_collective& c, const Deadline& deadline) {
    if (c.count == 0 || c.kind == DDP_COLLECTIVE_BARRIER) return;
    const auto communicator = on(c.device.index, deadline);
    const OnDevice current(c.device.index);
    const BesideCaptures beside;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream_of(c.stream), &capture), "cudaStreamIsCapturing");
    if (capture != cudaStreamCaptureStatusNone) communicator->note_graph();
    const Channel channel{*communicator, host_.rank, host_.world_size};
    const bool native = !settings_.direct && nccl_can_reduce(c.dtype, c.op);
    switch (c.kind) {
        case DDP_COLLECTIVE_ALLREDUCE:
            return native ? nccl_allreduce(channel, c, deadline)
                          : direct_allreduce(channel, c, deadline);
        case DDP_COLLECTIVE_REDUCE_SCATTER:
            return native ? nccl_reduce_scatter(channel, c, deadline)
                          : direct_reduce_scatter(channel, c, deadline);
        case DDP_COLLECTIVE_BROADCAST:
            return broadcast(channel, c, deadline);
        case DDP_COLLECTIVE_ALLGATHER:
            return allgather(channel, c, deadline);
        case DDP_COLLECTIVE_ALL_TO_ALL:
            return all_to_all(channel, c, deadline);
        default:
            fail(DDP_ERROR_UNSUPPORTED, "unknown collective ", c.kind);
    }
}

std::shared_ptr<Communicator> NcclTransport::find(int device) {
    const Lock lock(mutex_);
    const auto found = communicators_.find(device);
    return found == communicators_.end() ? nullptr : found->second;
}

std::shared_ptr<Communicator> NcclTransport::on(int device, const Deadline& deadline) {
    if (auto known = find(device)) return known;
    const Lock creating(creating_);
    if (auto known = find(device)) return known;
    std::size_t number = 0;
    {
        const Lock lock(mutex_);
        number = communicators_.size();
    }
    auto created = std::make_shared<Communicator>(host_, static_cast<int>(number), device, deadline,
                                                  [this] { failure_.check(); });
    {
        const Lock lock(mutex_);
        communicators_.emplace(device, created);
    }
    if (failure_.failed()) created->abort();  // an abort that came before it was found there
    return created;
}

void NcclTransport::check_enqueued() {
    std::vector<std::shared_ptr<Communicator>> all;
    {
        const Lock lock(mutex_);
        for (const auto& [device, communicator] : communicators_) all.push_back(communicator);
    }
    guarded([&] {
        for (const auto& communicator : all) communicator->check_enqueued();
    });
}

void NcclTransport::abort() {
    failure_.set({DDP_ERROR_ABORTED, "the group was aborted"});
    const Lock lock(mutex_);
    for (const auto& [device, communicator] : communicators_) communicator->abort();
}

void* NcclTransport::allocate(std::size_t bytes, const ddp_device& device) {
    if (!settings_.registers || host_.world_size == 1 || device.kind != DDP_DEVICE_CUDA)
        return nullptr;
    // Before, each bucket takes a multiple of what a multicast object does: 512 MiB on an H100.
    if (nccl().version < kAllocatesExactly) return nullptr;
    failure_.check();
    const Deadline deadline = Deadline::after_ms(host_.timeout_ms);
    const auto communicator = on(device.index, deadline);
    // With NCCL 2.30.7, sends and receives of registered memory between two processes on one GPU
    // never ended.
    if (communicator->shares_gpu()) return nullptr;
    const OnDevice current(device.index);
    const BesideCaptures beside;
    void* memory = allocate_zeroed_for_nccl(bytes);
    if (!memory) return nullptr;
    try {
        void* const handle = register_memory(*communicator, memory, bytes, deadline);
        const Lock lock(mutex_);
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
        const Lock lock(mutex_);
        registered = std::move(registered_.extract(memory).mapped());
    }
    const OnDevice current(registered.communicator->device());
    const BesideCaptures beside;
    if (registered.handle) unregister_memory(*registered.communicator, registered.handle);
    free_for_nccl(memory);
}

namespace {

using Adapter = backend::Adapter<NcclTransport>;

constexpr ddp_backend kBackend = Adapter::table("nccl");

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
