#include "cuda/gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

#include "ddp/ddp.h"
#include "util/error.h"

namespace bench {
namespace {

// The module lies beside libddp.so, wherever that was found.
void find_modules() {
    if (std::getenv("DDP_MODULE_PATH")) return;
    Dl_info info;
    if (!dladdr(reinterpret_cast<const void*>(&ddp_version), &info) || !info.dli_fname) return;
    const std::string library = info.dli_fname;
    setenv("DDP_MODULE_PATH", (library.substr(0, library.rfind('/') + 1) + "ddp").c_str(), 0);
}

}  // namespace

void check_cuda(cudaError_t code, const char* call) {
    if (code != cudaSuccess)
        throw std::runtime_error(std::string(call) + " failed: " + cudaGetErrorString(code));
}

ddp_device parse_device(const std::string& text) {
    const bool numbered = text.rfind("cuda:", 0) == 0;
    if (text != "cuda" && !numbered)
        throw std::runtime_error("--device is cpu, cuda or cuda:N, not '" + text + "'");
    ddp_device device{DDP_DEVICE_CUDA, numbered ? std::atoi(text.c_str() + 5) : 0};
    find_modules();
    libddp::require_device(device, "--device");
    check_cuda(cudaSetDevice(device.index), "cudaSetDevice");
    return device;
}

std::shared_ptr<void> allocate_on(const ddp_device& device, std::size_t bytes) {
    check_cuda(cudaSetDevice(device.index), "cudaSetDevice");
    void* memory = nullptr;
    check_cuda(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "cudaMalloc");
    check_cuda(cudaMemset(memory, 0, bytes), "cudaMemset");
    return {memory, [](void* m) { cudaFree(m); }};
}

void fill_with_random(void* memory, std::size_t floats) {
    constexpr std::size_t kMost = std::size_t{1} << 20;
    std::mt19937 random(41);
    std::uniform_real_distribution<float> number(-1, 1);
    std::vector<float> some(std::min(floats, kMost));
    for (float& value : some) value = number(random);
    auto* next = static_cast<float*>(memory);
    for (std::size_t left = floats; left > 0;) {
        const std::size_t count = std::min(left, kMost);
        check_cuda(cudaMemcpy(next, some.data(), 4 * count, cudaMemcpyHostToDevice), "cudaMemcpy");
        next += count;
        left -= count;
    }
    check_cuda(cudaStreamSynchronize(nullptr),
               "cudaStreamSynchronize");  // streams of the benchmark would not wait for it
}

GpuTimer::GpuTimer(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
}

GpuTimer::~GpuTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
}

void GpuTimer::begin() {
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
}

double GpuTimer::end() {
    float milliseconds = 0;
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds;
}

}  // namespace bench
