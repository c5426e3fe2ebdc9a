// Devices, streams and events of NVIDIA GPUs. The table of these and of memory.h, which libddp
// finds in libddp-cuda.so.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "util/module.h"

namespace libddp::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// A wait first looks again and again, about as long as a thread needs to wake, and then sleeps
// between looks.
constexpr auto kLooking = std::chrono::microseconds(50);
constexpr auto kFirstSleep = std::chrono::microseconds(20);
constexpr auto kLongestSleep = std::chrono::microseconds(200);

bool is_done(cudaEvent_t event) {
    const cudaError_t code = cudaEventQuery(event);
    if (code == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    check(code, "an operation on the GPU");
    return true;
}

ddp_status count(std::int32_t* count, ddp_device_failure* failure) {
    return at_boundary(failure, [&] { *count = device_count(); });
}

ddp_status stream_create(std::int32_t device, void** stream, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        int least = 0, greatest = 0;
        check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
              "cudaDeviceGetStreamPriorityRange");
        cudaStream_t created = nullptr;
        check(cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, greatest),
              "cudaStreamCreateWithPriority");
        *stream = created;
    });
}

void stream_destroy(std::int32_t device, void* stream) {
    ddp_device_failure ignored;
    guarded_on(device, &ignored, [&] { cudaStreamDestroy(stream_of(stream)); });
}

ddp_status stream_capture(std::int32_t device, void* stream, std::uint64_t* capture,
                          ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        unsigned long long id = 0;
        const cudaError_t code = cudaStreamGetCaptureInfo(stream_of(stream), &status, &id);
        // A question to the legacy stream while another stream captures takes part in the capture.
        if (code == cudaErrorStreamCaptureImplicit) {
            cudaGetLastError();
            *capture = DDP_NO_PART_OF_CAPTURES;
            return;
        }
        check(code, "cudaStreamGetCaptureInfo");
        if (status == cudaStreamCaptureStatusInvalidated)
            fail(
                DDP_ERROR_INVALID_STATE,
                "the capture of a stream into a graph has failed: an operation that cannot be part "
                "of a graph came while it was under way");
        *capture = status == cudaStreamCaptureStatusNone ? 0 : id;
    });
}

ddp_status capture_keep(std::int32_t device, void* stream, void* kept, void (*release)(void*),
                        ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cudaGraph_t graph = nullptr;
        check(cudaStreamGetCaptureInfo(stream_of(stream), &status, nullptr, &graph),
              "cudaStreamGetCaptureInfo");
        cudaUserObject_t object = nullptr;
        check(cudaUserObjectCreate(&object, kept, release, 1, cudaUserObjectNoDestructorSync),
              "cudaUserObjectCreate");
        check(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
              "cudaGraphRetainUserObject");
    });
}

ddp_status event_create(std::int32_t device, void** event, ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        cudaEvent_t created = nullptr;
        check(cudaEventCreateWithFlags(&created, cudaEventDisableTiming),
              "cudaEventCreateWithFlags");
        *event = created;
    });
}

void event_destroy(std::int32_t device, void* event) {
    ddp_device_failure ignored;
    guarded_on(device, &ignored, [&] { cudaEventDestroy(event_of(event)); });
}

ddp_status event_record(std::int32_t device, void* event, void* stream,
                        ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
    });
}

ddp_status stream_wait(std::int32_t device, void* stream, void* event,
                       ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
    });
}

ddp_status event_query(std::int32_t device, void* event, std::int32_t* done,
                       ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] { *done = is_done(event_of(event)) ? 1 : 0; });
}

ddp_status event_wait(std::int32_t device, void* event, std::int64_t timeout_ns, std::int32_t* done,
                      ddp_device_failure* failure) {
    return guarded_on(device, failure, [&] {
        const auto begin = Clock::now(), end = begin + std::chrono::nanoseconds(timeout_ns);
        auto pause = kFirstSleep;
        for (;;) {
            *done = is_done(event_of(event)) ? 1 : 0;
            const auto now = Clock::now();
            if (*done || now >= end) return;
            if (now - begin < kLooking) {
                std::this_thread::yield();
            } else {
                std::this_thread::sleep_until(std::min(now + pause, end));
                pause = std::min(2 * pause, kLongestSleep);
            }
        }
    });
}

const ddp_device_module kModule = {
    sizeof(ddp_device_module),
    build_identity(),
    "cuda",
    DDP_DEVICE_CUDA,
    0,
    count,
    device_of,
    allocate,
    deallocate,
    allocate_host,
    deallocate_host,
    stream_create,
    stream_destroy,
    stream_capture,
    capture_keep,
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
