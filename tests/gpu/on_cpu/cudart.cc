// The functions of CUDA's runtime that the module and its tests call, without a GPU: four devices
// with the memory of the host, or as many as ON_CPU_DEVICES says. Arguments are not checked as CUDA
// would.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/on_cpu/stream.h"

namespace {

using fake::Event;
using fake::Point;
using fake::Stream;
using on_cpu::stream_of;

int devices() {
    static const char* said = std::getenv("ON_CPU_DEVICES");
    return said ? std::atoi(said) : 4;
}
constexpr int kNone = -1;
thread_local int current_device = kNone;
int default_device() {
    return current_device == kNone ? 0 : current_device;
}
thread_local std::vector<int> before;  // the devices of contexts under the current one

// The calls of the driver that the module makes. A context is the number of its device, plus 1.
CUresult init(unsigned) {
    return CUDA_SUCCESS;
}
CUresult device_get(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult retain(CUcontext* context, CUdevice device) {
    *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
    return CUDA_SUCCESS;
}
CUresult push(CUcontext context) {
    before.push_back(current_device);
    current_device = static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
    return CUDA_SUCCESS;
}
CUresult get_current(CUcontext* context) {
    if (current_device == kNone) {
        *context = nullptr;
        return CUDA_SUCCESS;
    }
    return retain(context, current_device);
}
CUresult pop(CUcontext*) {
    current_device = before.back();
    before.pop_back();
    return CUDA_SUCCESS;
}

void* driver_function(const std::string& name) {
    if (name == "cuInit") return reinterpret_cast<void*>(init);
    if (name == "cuDeviceGet") return reinterpret_cast<void*>(device_get);
    if (name == "cuDevicePrimaryCtxRetain") return reinterpret_cast<void*>(retain);
    if (name == "cuCtxPushCurrent") return reinterpret_cast<void*>(push);
    if (name == "cuCtxGetCurrent") return reinterpret_cast<void*>(get_current);
    if (name == "cuCtxPopCurrent") return reinterpret_cast<void*>(pop);
    return nullptr;
}

struct Block {
    std::size_t bytes;
    int device;
    bool host;
};
std::mutex memory_mutex;
// Never freed: threads that destroy streams may still use it when the process exits.
std::map<const char*, Block>& memory = *new std::map<const char*, Block>;

// The middle of a block is part of it as well.
const Block* block_of(const void* pointer) {
    const auto* p = static_cast<const char*>(pointer);
    auto after = memory.upper_bound(p);
    if (after == memory.begin()) return nullptr;
    --after;
    return p < after->first + after->second.bytes ? &after->second : nullptr;
}

cudaError_t allocate(void** pointer, std::size_t bytes, bool host) {
    const std::size_t size = (bytes + 511) / 256 * 256;
    *pointer = std::aligned_alloc(256, size);
    if (!*pointer) return cudaErrorMemoryAllocation;
    std::memset(*pointer, 0xab, size);
    const std::lock_guard lock(memory_mutex);
    memory[static_cast<const char*>(*pointer)] = {bytes, default_device(), host};
    return cudaSuccess;
}

void release(void* pointer) {
    {
        const std::lock_guard lock(memory_mutex);
        memory.erase(static_cast<const char*>(pointer));
    }
    std::free(pointer);
}

Event& event_of(cudaEvent_t event) {
    return *reinterpret_cast<Event*>(event);
}

std::shared_ptr<Point> point_of(cudaEvent_t event) {
    return event_of(event).last();
}

using Graph = std::shared_ptr<fake::Capture>;

struct UserObject {
    void* pointer;
    cudaHostFn_t destroy;
};

// Operations follow each other at once: kernels as loops take long enough.
const bool no_delay = (fake::set_longest_delay(0), true);

// A thread's own stream.
struct OwnStream {
    void* const handle = Stream::make(0);
    ~OwnStream() { Stream::free(handle); }
};

}  // namespace

Stream& on_cpu::stream_of(void* stream) {
    if (!stream) return *Stream::of(0, nullptr);
    if (stream != reinterpret_cast<void*>(2)) return *Stream::of(stream);  // cudaStreamPerThread
    thread_local const OwnStream own;
    return *Stream::of(own.handle);
}

extern "C" {

cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t code) {
    return code == cudaSuccess ? "no error" : "an error";
}
const char* cudaGetErrorName(cudaError_t) {
    return "cudaError";
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
    *count = devices();
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult*) {
    *function = driver_function(name);
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult*) {
    *function = driver_function(name);
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = default_device();
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= devices()) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    std::memset(properties, 0, sizeof *properties);
    std::snprintf(properties->name, sizeof properties->name, "a CPU that plays GPU %d", device);
    properties->uuid.bytes[0] = static_cast<char>(device + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    std::snprintf(text, static_cast<std::size_t>(size), "0000:0%d:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    *value = 1;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    const std::lock_guard lock(memory_mutex);
    const Block* block = block_of(pointer);
    std::memset(attributes, 0, sizeof *attributes);
    attributes->type = !block        ? cudaMemoryTypeUnregistered
                       : block->host ? cudaMemoryTypeHost
                                     : cudaMemoryTypeDevice;
    attributes->device = block ? block->device : 0;
    return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
    *pool = nullptr;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* reaches, int, int) {
    *reaches = 1;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
    return cudaSuccess;
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t, cudaStream_t) {
    return allocate(pointer, bytes, false);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    if (const auto capture = stream_of(stream).capture()) {  // each launch of the graph uses it
        capture->at_end([pointer] { release(pointer); });
        return cudaSuccess;
    }
    stream_of(stream).enqueue([pointer] { release(pointer); });
    return cudaSuccess;
}
// These may wait for whatever runs on the device: so here they do.
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    Stream::synchronize_all();
    return allocate(pointer, bytes, false);
}
cudaError_t cudaFree(void* pointer) {
    Stream::synchronize_all();
    release(pointer);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
    Stream::synchronize_all();
    return allocate(pointer, bytes, true);
}
cudaError_t cudaFreeHost(void* pointer) {
    Stream::synchronize_all();
    release(pointer);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
    *left = *total = 0;
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
    stream_of(stream).enqueue([=] { std::memset(pointer, value, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
    stream_of(stream).enqueue([=] { std::memcpy(dst, src, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
    cudaMemsetAsync(pointer, value, bytes, nullptr);
    return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
    cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
    return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = static_cast<cudaStream_t>(Stream::make(default_device()));
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
// As CUDA does: what is enqueued ends by itself.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Stream::free(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (stream_of(stream).capture()) return cudaErrorStreamCaptureUnsupported;
    stream_of(stream).synchronize();
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return cudaStreamGetCaptureInfo(stream, status);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
    const auto capture = stream_of(stream).capture();
    *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id && capture) *id = capture->id();
    if (graph && capture) *graph = reinterpret_cast<cudaGraph_t>(capture.get());
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    stream_of(stream).begin_capture();
    return cudaSuccess;
}
// A graph of the program's is a pointer to what it shares.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    auto captured = stream_of(stream).end_capture();
    *graph = captured ? reinterpret_cast<cudaGraph_t>(new Graph(std::move(captured))) : nullptr;
    return *graph ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<Graph*>(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
    *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    delete reinterpret_cast<Graph*>(executable);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    stream_of(stream).launch(*reinterpret_cast<Graph*>(executable));
    return cudaSuccess;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer, cudaHostFn_t destroy,
                                 unsigned, unsigned) {
    *object = reinterpret_cast<cudaUserObject_t>(new UserObject{pointer, destroy});
    return cudaSuccess;
}
// The graph of a stream that is being captured, which nobody else has yet.
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned,
                                      unsigned flags) {
    if (flags != cudaGraphUserObjectMove) return cudaErrorNotSupported;
    auto* const kept = reinterpret_cast<UserObject*>(object);
    reinterpret_cast<fake::Capture*>(graph)->at_end([kept] {
        kept->destroy(kept->pointer);
        delete kept;
    });
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    stream_of(stream).enqueue([=] { function(data); });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    *event = reinterpret_cast<cudaEvent_t>(new Event(default_device()));
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete &event_of(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    stream_of(stream).record(event_of(event));
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return stream_of(stream).wait_for(event_of(event)) ? cudaSuccess
                                                       : cudaErrorStreamCaptureIsolation;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (event_of(event).captured()) return cudaErrorCapturedEvent;
    const auto point = point_of(event);
    return !point || point->done() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (event_of(event).captured()) return cudaErrorCapturedEvent;
    if (const auto point = point_of(event)) point->wait();
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    const auto from = point_of(begin), to = point_of(end);
    if (!from || !to) return cudaErrorInvalidResourceHandle;
    if (cudaEventQuery(begin) != cudaSuccess || cudaEventQuery(end) != cudaSuccess)
        return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(to->when() - from->when()).count();
    return cudaSuccess;
}

}  // extern "C"
