// A GPU as the benchmarks use it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "device/stream.h"

namespace bench {

// Throws std::runtime_error with CUDA's sentence.
void check_cuda(cudaError_t code, const char* call);

// "cuda" or "cuda:1". Throws std::runtime_error: another kind, no GPU, no such one.
ddp_device parse_device(const std::string& text);

// Device memory that the program has allocated, as a trainer would. Freed with the pointer.
std::shared_ptr<void> allocate_on(const ddp_device& device, std::size_t bytes);

// Numbers of which no two neighbours are alike, in [-1, 1): how fast memory is may depend on what
// is in it.
void fill_with_random(void* memory, std::size_t floats);

// Times on a stream, by the GPU's clock.
class GpuTimer {
public:
    explicit GpuTimer(void* stream);
    ~GpuTimer();
    GpuTimer(const GpuTimer&) = delete;
    GpuTimer& operator=(const GpuTimer&) = delete;
    void begin();
    double end();  // milliseconds since begin(); waits for them

private:
    cudaStream_t stream_;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace bench
