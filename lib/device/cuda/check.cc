#include "device/cuda/check.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <vector>

#include "util/mutex.h"

namespace libddp::cuda {

void check(cudaError_t code, const char* call) {
    if (code == cudaSuccess) return;
    // Errors that do not stay are forgotten, so that the program's own calls do not meet them.
    cudaGetLastError();
    fail(code == cudaErrorMemoryAllocation ? DDP_ERROR_OUT_OF_MEMORY : DDP_ERROR_UNAVAILABLE, call,
         " failed: ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
}

std::string version_text(int version) {
    return str(version / 1000, ".", version % 1000 / 10);
}

int device_count() {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaSuccess && count > 0) return count;
    cudaGetLastError();
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (driver == 0)
        fail(DDP_ERROR_UNAVAILABLE,
             "no device: this machine has no NVIDIA driver (libcuda.so.1 does not load)");
    if (code == cudaErrorInsufficientDriver)
        fail(DDP_ERROR_UNAVAILABLE, "no device: the NVIDIA driver knows CUDA ",
             version_text(driver), ", and this libddp was built with CUDA ",
             version_text(CUDART_VERSION), "; install a newer driver");
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (code == cudaSuccess || code == cudaErrorNoDevice)
        fail(DDP_ERROR_UNAVAILABLE, "no device: the NVIDIA driver shows no GPU",
             visible ? str(" (CUDA_VISIBLE_DEVICES is '", visible, "')") : "");
    fail(DDP_ERROR_UNAVAILABLE, "no device: cudaGetDeviceCount failed: ", cudaGetErrorString(code),
         " (", cudaGetErrorName(code), ")");
}

namespace {

// Errors of the driver have the numbers of the runtime's.
void check(CUresult result, const char* call) {
    cuda::check(static_cast<cudaError_t>(result), call);
}

// The driver's functions, through the runtime: libcuda.so.1 may not be there.
template <class Function>
void find(const char* name, unsigned version, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    cuda::check(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result),
                name);
#else
    static_cast<void>(version);
    cuda::check(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result), name);
#endif
    if (!found) fail(DDP_ERROR_UNAVAILABLE, "the NVIDIA driver has no ", name);
    function = reinterpret_cast<Function>(found);
}

class Driver {
public:
    Driver() : contexts_(static_cast<std::size_t>(device_count())) {
        PFN_cuInit_v2000 init = nullptr;
        find("cuInit", 2000, init);
        find("cuDeviceGet", 2000, device_get_);
        find("cuDevicePrimaryCtxRetain", 7000, retain_);
        find("cuCtxPushCurrent", 4000, push_);
        find("cuCtxPopCurrent", 4000, pop_);
        check(init(0), "cuInit");
    }

    void push(int device) {
        if (device < 0 || static_cast<std::size_t>(device) >= contexts_.size())
            fail(DDP_ERROR_INVALID_ARGUMENT, "there is no CUDA device ", device,
                 ": this process sees ", contexts_.size());
        check(push_(context_of(device)), "cuCtxPushCurrent");
    }
    bool push_any() {
        const CUcontext context = any_.load();
        return context && push_(context) == CUDA_SUCCESS;
    }
    void pop() {
        CUcontext popped = nullptr;
        pop_(&popped);
    }

private:
    // Retained as long as the process lives.
    CUcontext context_of(int device) {
        std::atomic<CUcontext>& known = contexts_[static_cast<std::size_t>(device)];
        if (const CUcontext context = known.load()) return context;
        const Lock lock(mutex_);
        if (const CUcontext context = known.load()) return context;
        CUdevice handle = 0;
        CUcontext context = nullptr;
        check(device_get_(&handle, device), "cuDeviceGet");
        check(retain_(&context, handle), "cuDevicePrimaryCtxRetain");
        known = context;
        any_ = context;
        return context;
    }

    PFN_cuDeviceGet_v2000 device_get_ = nullptr;
    PFN_cuDevicePrimaryCtxRetain_v7000 retain_ = nullptr;
    PFN_cuCtxPushCurrent_v4000 push_ = nullptr;
    PFN_cuCtxPopCurrent_v4000 pop_ = nullptr;
    Mutex mutex_;
    std::vector<std::atomic<CUcontext>> contexts_;
    std::atomic<CUcontext> any_{nullptr};
};

std::atomic<Driver*> known_driver{nullptr};

// Throws where there is no device; asked again next time.
Driver& driver() {
    static Driver& instance = *(known_driver = new Driver);
    return instance;
}

}  // namespace

OnDevice::OnDevice(int device) {
    driver().push(device);
}

OnDevice::~OnDevice() {
    driver().pop();
}

OnSomeDevice::OnSomeDevice() {
    Driver* const known = known_driver.load();
    pushed_ = known && known->push_any();
}

OnSomeDevice::~OnSomeDevice() {
    if (pushed_) driver().pop();
}

}  // namespace libddp::cuda
