// The CUDA runtime's errors as libddp's.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "device/device_module.h"
#include "util/boundary.h"

namespace libddp::cuda {

// Throws what a call of the CUDA runtime has returned: OUT_OF_MEMORY, or UNAVAILABLE. `call`: its
// name.
void check(cudaError_t code, const char* call);

// How many devices there are, at least 1. Throws UNAVAILABLE, which says why there is none: no
// driver, an older one than the module needs, none visible.
int device_count();

// "13.0" from 13000.
std::string version_text(int version);

// Which device the calling thread works on. A device's primary context is pushed and popped,
// because going back by cudaSetDevice would begin to use the device that a fresh thread has by
// default, GPU 0: some hundred MB of it for every rank, or an error where a GPU may have one
// process only.

// Makes a device the calling thread's current one while it lives. Throws INVALID_ARGUMENT if there
// is no such device.
class OnDevice {
public:
    explicit OnDevice(int device);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
};

// For calls that need some device, whichever: one that libddp uses already, if there is one.
class OnSomeDevice {
public:
    OnSomeDevice();
    ~OnSomeDevice();
    OnSomeDevice(const OnSomeDevice&) = delete;
    OnSomeDevice& operator=(const OnSomeDevice&) = delete;
    // Whether libddp uses a device.
    explicit operator bool() const { return pushed_; }

private:
    bool pushed_ = false;
};

// Calls of the CUDA runtime that are forbidden while another thread captures a stream into a graph,
// unless this thread says that they have nothing to do with that.
class BesideCaptures {
public:
    BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    BesideCaptures(const BesideCaptures&) = delete;
    BesideCaptures& operator=(const BesideCaptures&) = delete;

private:
    // the thread's own while this lives
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

template <class Call>
ddp_status guarded_on(int device, ddp_device_failure* failure, Call call) noexcept {
    return at_boundary(failure, [&] {
        const OnDevice current(device);
        const BesideCaptures beside;
        // Clears the error of a call whose result nobody wants: it would be taken for the error of
        // the next kernel.
        cudaGetLastError();
        call();
    });
}

inline cudaStream_t stream_of(void* stream) {
    return static_cast<cudaStream_t>(stream);
}
inline cudaEvent_t event_of(void* event) {
    return static_cast<cudaEvent_t>(event);
}

}  // namespace libddp::cuda
