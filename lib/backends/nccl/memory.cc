#include "backends/nccl/memory.h"

#include "device/cuda/check.h"

namespace libddp::cuda {
namespace {

constexpr std::int64_t kUnregisterMs = 100;

// Zeroes on a stream of its own, so that no other is waited for.
bool zero(void* memory, std::size_t bytes) {
    cudaStream_t stream = nullptr;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return false;
    const bool done =
        cudaMemsetAsync(memory, 0, bytes, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess;
    cudaStreamDestroy(stream);
    return done;
}

}  // namespace

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

void* register_memory(Communicator& communicator, void* memory, std::size_t bytes, const Deadline& deadline) {
    void* handle = nullptr;
    communicator.enqueue("registering a bucket", deadline, [&](ncclComm_t comm) {
        const ncclResult_t result = nccl().ncclCommRegister(comm, memory, bytes, &handle);
        if (result == ncclSuccess || result == ncclInProgress) return result;
        handle = nullptr;
        return ncclSuccess;
    });
    return handle;
}

void unregister_memory(Communicator& communicator, void* handle) {
    try {
        communicator.enqueue("releasing a bucket", Deadline::after_ms(kUnregisterMs),
                             [&](ncclComm_t comm) { return nccl().ncclCommDeregister(comm, handle); });
    } catch (const Error&) {
        // The communicator has ended.
    }
}

}  // namespace libddp::cuda
