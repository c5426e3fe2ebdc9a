#include "device/cuda/memory.h"

#include <map>

#include "device/cuda/check.h"
#include "util/mutex.h"

namespace libddp::cuda {
namespace {

// The memory that the pool of a device keeps when buckets are freed: enough that a new bucket plan
// finds memory without asking the driver, not so much that the program misses it.
constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;

using Pools = std::map<int, cudaMemPool_t>;

// NCCL reads buffers of other ranks of the process in place, on whichever devices those have. Where
// that fails everything works that does not read across.
void let_read(cudaMemPool_t pool, int owner, int reader) {
    int reaches = 0;
    if (cudaDeviceCanAccessPeer(&reaches, reader, owner) == cudaSuccess && reaches) {
        cudaMemAccessDesc access{};
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = reader;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        static_cast<void>(cudaMemPoolSetAccess(pool, &access, 1));
    }
    cudaGetLastError();
}

// A pool of libddp's own, so that the program's settings of the device's default pool stay its own.
// Lives as long as the process.
cudaMemPool_t pool_of(int device) {
    static Mutex& mutex = *new Mutex;
    static auto& pools = *new Pools;
    const Lock lock(mutex);
    const auto found = pools.find(device);
    if (found != pools.end()) return found->second;
    int supported = 0;
    check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device),
          "cudaDeviceGetAttribute");
    if (!supported)
        fail(DDP_ERROR_UNSUPPORTED, "CUDA device ", device,
             " has no stream-ordered memory (cudaMallocAsync)");
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    cudaMemPool_t pool = nullptr;
    check(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
    auto kept = static_cast<unsigned long long>(kKeptBytes);
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept),
          "cudaMemPoolSetAttribute");
    // Otherwise an allocation on one stream may wait for another stream, which may be waiting for
    // another rank.
    int no = 0;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no),
          "cudaMemPoolSetAttribute");
    for (const auto& [other, others] : pools) {
        let_read(pool, device, other);
        let_read(others, other, device);
    }
    pools.emplace(device, pool);
    return pool;
}

}  // namespace

void* allocate_in_order(int device, std::size_t bytes, cudaStream_t stream) {
    void* memory = nullptr;
    const cudaError_t code = cudaMallocFromPoolAsync(&memory, bytes, pool_of(device), stream);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        std::size_t free_bytes = 0, total = 0;
        cudaMemGetInfo(&free_bytes, &total);
        fail(DDP_ERROR_OUT_OF_MEMORY, "no memory for a bucket of ", bytes, " bytes on CUDA device ",
             device, ", which has ", free_bytes, " of ", total, " bytes free");
    }
    check(code, "cudaMallocFromPoolAsync");
    return memory;
}

ddp_status device_of(const void* pointer, ddp_device* device, ddp_device_failure* failure) {
    return at_boundary(failure, [&] {
        *device = {DDP_DEVICE_CPU, 0};
        cudaPointerAttributes attributes{};
        const OnSomeDevice current;
        const BesideCaptures beside;
        const cudaError_t code = cudaPointerGetAttributes(&attributes, pointer);
        // A device that has failed says nothing about its memory, which the host may not read.
        // Where libddp uses none the memory is the host's, whatever is wrong with the driver.
        if (current && code != cudaErrorInvalidValue) check(code, "cudaPointerGetAttributes");
        if (code != cudaSuccess) {
            cudaGetLastError();
            return;
        }
        if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged)
            *device = {DDP_DEVICE_CUDA, attributes.device};
    });
}

ddp_status allocate(std::int32_t device, void* stream, std::size_t bytes, void** memory,
                    ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        *memory = allocate_in_order(device, bytes, stream_of(stream));
        const cudaError_t zeroed = cudaMemsetAsync(*memory, 0, bytes, stream_of(stream));
        if (zeroed != cudaSuccess) cudaFreeAsync(*memory, stream_of(stream));
        check(zeroed, "cudaMemsetAsync");
    });
}

void deallocate(std::int32_t device, void* stream, void* memory) {
    ddp_device_failure ignored;
    guarded_on(device, &ignored, [&] { cudaFreeAsync(memory, stream_of(stream)); });
}

ddp_status copy(std::int32_t device, void* stream, void* dst, const void* src, std::size_t bytes,
                ddp_copy_kind kind, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        check(cudaMemcpyAsync(
                  dst, src, bytes,
                  kind == DDP_COPY_TO_HOST ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                  stream_of(stream)),
              "cudaMemcpyAsync");
    });
}

// Pinned memory. Freed memory is kept for the next request: cudaFreeHost waits for whatever runs on
// the devices, and an operation of NCCL may be running that waits for another rank of this process.

namespace {

// A kept block may serve a smaller request, but not one so small that most of the block lies idle.
constexpr std::size_t kMostTimesLarger = 2;

struct Kept {
    Mutex mutex;
    std::map<void*, std::size_t> sizes DDP_GUARDED_BY(mutex);
    std::multimap<std::size_t, void*> idle DDP_GUARDED_BY(mutex);
};

Kept& kept() {
    static Kept& instance = *new Kept;
    return instance;
}

void* take_idle(std::size_t bytes) {
    Kept& k = kept();
    const Lock lock(k.mutex);
    const auto found = k.idle.lower_bound(bytes);
    if (found == k.idle.end() || found->first / kMostTimesLarger > bytes) return nullptr;
    void* const memory = found->second;
    k.idle.erase(found);
    return memory;
}

// When memory is short, what is idle goes first.
bool free_idle() {
    std::multimap<std::size_t, void*> idle;
    {
        Kept& k = kept();
        const Lock lock(k.mutex);
        idle.swap(k.idle);
        for (const auto& [size, memory] : idle) k.sizes.erase(memory);
    }
    for (const auto& [size, memory] : idle) cudaFreeHost(memory);
    return !idle.empty();
}

void* allocate_new(std::size_t bytes) {
    void* memory = nullptr;
    cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation && free_idle())
        code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        fail(DDP_ERROR_OUT_OF_MEMORY, "no pinned memory of ", bytes,
             " bytes; see 'ulimit -l' and the memory of this host");
    }
    check(code, "cudaHostAlloc");
    Kept& k = kept();
    const Lock lock(k.mutex);
    k.sizes.emplace(memory, bytes);
    return memory;
}

}  // namespace

ddp_status allocate_host(std::size_t bytes, void** memory, ddp_device_failure* failure) {
    return at_boundary(failure, [&] {
        *memory = take_idle(bytes);
        if (*memory) return;
        const OnSomeDevice current;
        const BesideCaptures beside;
        *memory = allocate_new(bytes);
    });
}

void deallocate_host(void* memory) {
    ddp_device_failure ignored;  // short of memory: then it is kept for nobody
    at_boundary(&ignored, [&] {
        Kept& k = kept();
        const Lock lock(k.mutex);
        k.idle.emplace(k.sizes.at(memory), memory);
    });
}

}  // namespace libddp::cuda
