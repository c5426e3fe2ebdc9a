// Pinned memory. What is freed is kept for the next who needs it: cudaFreeHost waits for whatever runs on the devices, and an operation
// of NCCL may be running that waits for another rank of this process.
#include <map>
#include <mutex>

#include "device/cuda/door.h"
#include "device/cuda/memory.h"

namespace libddp::cuda {
namespace {

// What is kept may be used for less, but not for so little that most of it lies idle.
constexpr std::size_t kMostTimesLarger = 2;

struct Kept {
    std::mutex mutex;
    std::map<void*, std::size_t> sizes;
    std::multimap<std::size_t, void*> idle;
};

Kept& kept() {
    static Kept& instance = *new Kept;
    return instance;
}

void* take_idle(std::size_t bytes) {
    Kept& k = kept();
    const std::lock_guard lock(k.mutex);
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
        const std::lock_guard lock(k.mutex);
        idle.swap(k.idle);
        for (const auto& [size, memory] : idle) k.sizes.erase(memory);
    }
    for (const auto& [size, memory] : idle) cudaFreeHost(memory);
    return !idle.empty();
}

void* allocate_new(std::size_t bytes) {
    void* memory = nullptr;
    cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation && free_idle()) code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        fail(DDP_ERROR_OUT_OF_MEMORY, "no pinned memory of ", bytes,
             " bytes; see 'ulimit -l' and the memory of this host");
    }
    check(code, "cudaHostAlloc");
    Kept& k = kept();
    const std::lock_guard lock(k.mutex);
    k.sizes.emplace(memory, bytes);
    return memory;
}

}  // namespace

ddp_status allocate_host(std::size_t bytes, void** memory, ddp_device_failure* failure) {
    return guarded(failure, [&] {
        *memory = take_idle(bytes);
        if (*memory) return;
        const OnSomeDevice current;
        const BesideCaptures beside;
        *memory = allocate_new(bytes);
    });
}

void deallocate_host(void* memory) {
    ddp_device_failure ignored;  // short of memory: then it is kept for nobody
    guarded(&ignored, [&] {
        Kept& k = kept();
        const std::lock_guard lock(k.mutex);
        k.idle.emplace(k.sizes.at(memory), memory);
    });
}

}  // namespace libddp::cuda
