// A GPU for the tests of Java and Julia.
#include "support/test_device.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>

namespace {

void check(cudaError_t status, const char* call) {
    if (status == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
    std::abort();
}

void copy(void* to, const void* from, std::size_t bytes) {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
}

}  // namespace

extern "C" {

int test_device_is_fake() {
    return 0;
}
void* test_device_allocate(int device, std::size_t bytes) {
    void* memory = nullptr;
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}
void test_device_write(void* memory, const void* from, std::size_t bytes) {
    copy(memory, from, bytes);
}
void test_device_read(void* to, const void* memory, std::size_t bytes) {
    copy(to, memory, bytes);
}
// It does not wait for the legacy default stream: only for what libddp and the test say.
void* test_device_make_stream(int device) {
    cudaStream_t stream = nullptr;
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
}
void test_device_free_stream(void* stream) {
    check(cudaStreamDestroy(static_cast<cudaStream_t>(stream)), "cudaStreamDestroy");
}
void test_device_wait(int, void* stream) {
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}
}
