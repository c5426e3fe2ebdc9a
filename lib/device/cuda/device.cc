// Devices, memory, streams and events of NVIDIA GPUs as the table that libddp finds in libddp-cuda.so.
#include <cstdio>

#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "device/cuda/streams.h"
#include "util/version.h"

namespace libddp::cuda {
namespace {

ddp_status count(std::int32_t* count, ddp_device_failure* failure) {
    return guarded(failure, [&] { *count = device_count(); });
}

ddp_status describe(std::int32_t device, char* text, std::size_t size, ddp_device_failure* failure) {
    return guarded(failure, [&] {
        const int devices = device_count();
        if (device < 0 || device >= devices)
            fail(DDP_ERROR_INVALID_ARGUMENT, "there is no CUDA device ", device, ": this process sees ", devices);
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
        int driver = 0;
        check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
        std::snprintf(
            text, size, "%s",
            str(properties.name, ", sm_", properties.major, properties.minor, ", ", properties.totalGlobalMem >> 20,
                " MiB, driver for CUDA ", version_text(driver), ", runtime ", version_text(CUDART_VERSION))
                .c_str());
    });
}

constexpr ddp_device_module kModule = {
    sizeof(ddp_device_module),
    kVersion,
    "cuda",
    DDP_DEVICE_CUDA,
    0,
    count,
    describe,
    device_of,
    allocate,
    deallocate,
    allocate_host,
    deallocate_host,
    stream_create,
    stream_destroy,
    stream_capturing,
    event_create,
    event_destroy,
    event_record,
    stream_wait,
    event_query,
    event_wait,
    copy,
};

}  // namespace
}  // namespace libddp::cuda

extern "C" DDP_API const ddp_device_module* ddp_device_entry(void) {
    return &libddp::cuda::kModule;
}
