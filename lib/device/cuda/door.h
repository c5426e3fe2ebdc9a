// From C++ that throws to the module's C functions.
#pragma once

#include <algorithm>
#include <cstring>

#include "device/cuda/check.h"
#include "device/cuda/contexts.h"
#include "device/device_module.h"
#include "util/error.h"

namespace libddp::cuda {

// Calls of the CUDA runtime that are forbidden while another thread captures a stream into a graph, unless this thread says that
// they have nothing to do with that.
class BesideCaptures {
public:
    BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
    BesideCaptures(const BesideCaptures&) = delete;
    BesideCaptures& operator=(const BesideCaptures&) = delete;

private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's own while this lives
};

template <class Call>
ddp_status guarded(ddp_device_failure* failure, Call call) noexcept {
    try {
        call();
        return DDP_OK;
    } catch (...) {
        const ErrorInfo info = caught();
        const std::size_t size = std::min(info.message.size(), sizeof failure->message - 1);
        std::memcpy(failure->message, info.message.data(), size);
        failure->message[size] = '\0';
        return info.code;
    }
}

template <class Call>
ddp_status guarded_on(int device, ddp_device_failure* failure, Call call) noexcept {
    return guarded(failure, [&] {
        const OnDevice current(device);
        const BesideCaptures beside;
        // What a call left whose result nobody wants would be taken for the error of the next kernel.
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
