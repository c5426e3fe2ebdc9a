#include "device/cuda/check.h"

#include <cstdlib>

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
        fail(DDP_ERROR_UNAVAILABLE, "no device: this machine has no NVIDIA driver (libcuda.so.1 does not load)");
    if (code == cudaErrorInsufficientDriver)
        fail(DDP_ERROR_UNAVAILABLE, "no device: the NVIDIA driver knows CUDA ", version_text(driver),
             ", and this libddp was built with CUDA ", version_text(CUDART_VERSION), "; install a newer driver");
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (code == cudaSuccess || code == cudaErrorNoDevice)
        fail(DDP_ERROR_UNAVAILABLE, "no device: the NVIDIA driver shows no GPU",
             visible ? str(" (CUDA_VISIBLE_DEVICES is '", visible, "')") : "");
    fail(DDP_ERROR_UNAVAILABLE, "no device: cudaGetDeviceCount failed: ", cudaGetErrorString(code), " (",
         cudaGetErrorName(code), ")");
}

}  // namespace libddp::cuda
