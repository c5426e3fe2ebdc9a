// The door to the GPU: the table of functions that libddp finds in libddp-cuda.so. They work without NCCL.
#include <cstdio>

#include "device/cuda/door.h"
#include "device/cuda/memory.h"
#include "device/cuda/streams.h"
#include "kernels/cuda/codecs.h"
#include "kernels/cuda/kernels.h"
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

ddp_status transfer_on(std::int32_t device, void* stream, const ddp_segment* segments, std::size_t count,
                       ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale, ddp_device_failure* failure) {
    return guarded_on(device, failure,
                      [&] { transfer(segments, count, src_dtype, dst_dtype, scale, stream_of(stream)); });
}

ddp_status reduce_on(std::int32_t device, void* stream, void* out, const void* const* inputs, std::size_t input_count,
                     std::size_t count, ddp_dtype dtype, ddp_reduce_op op, double scale, ddp_device_failure* failure) {
    return guarded_on(device, failure,
                      [&] { reduce(out, inputs, input_count, count, dtype, op, scale, stream_of(stream)); });
}

ddp_status low_rank_on(std::int32_t device, void* stream, ddp_low_rank_op op, const ddp_low_rank* items,
                       std::size_t count, ddp_dtype dtype, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { low_rank(op, items, count, dtype, stream_of(stream)); });
}

ddp_status thin_on(std::int32_t device, void* stream, ddp_thin_op op, const ddp_thin* items, std::size_t count,
                   ddp_dtype dtype, const ddp_thin_rules* rules, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { thin(op, items, count, dtype, *rules, stream_of(stream)); });
}

ddp_status leave_out_on(std::int32_t device, void* stream, const ddp_doubt* items, std::size_t count, ddp_dtype dtype,
                        const std::uint32_t* only_if, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { leave_out(items, count, dtype, only_if, stream_of(stream)); });
}

std::size_t encode_scratch(const ddp_codec_batch* batch) {
    return codec_scratch(*batch);
}

ddp_status encode_on(std::int32_t device, void* stream, const ddp_codec_batch* batch, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { encode(*batch, stream_of(stream)); });
}

ddp_status decode_on(std::int32_t device, void* stream, const ddp_codec_batch* batch, double scale,
                     ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { decode(*batch, scale, stream_of(stream)); });
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
    transfer_on,
    reduce_on,
    encode_scratch,
    encode_on,
    decode_on,
    copy,
    low_rank_on,
    thin_on,
    leave_out_on,
};

}  // namespace
}  // namespace libddp::cuda

extern "C" DDP_API const ddp_device_module* ddp_device_entry(void) {
    return &libddp::cuda::kModule;
}
