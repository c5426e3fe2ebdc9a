#include "cuda/gpu_moments.h"

#include "cuda/gpu.h"

namespace bench {
namespace {

cudaEvent_t make_event() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreate(&event), "cudaEventCreate");
    return event;
}

}  // namespace

GpuMoments::GpuMoments(void* stream) : start_(make_event()) {
    check_cuda(cudaEventRecord(start_, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
    check_cuda(cudaEventSynchronize(start_), "cudaEventSynchronize");
    host_start_ = now_ms();
}

GpuMoments::~GpuMoments() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaEventDestroy(start_);
}

void GpuMoments::reset(std::size_t count) {
    while (events_.size() < count) events_.push_back(make_event());
}

void GpuMoments::mark(std::size_t moment, void* stream) noexcept {
    const cudaError_t code = cudaEventRecord(events_[moment], static_cast<cudaStream_t>(stream));
    if (code != cudaSuccess) failed_ = code;
}

double GpuMoments::at(std::size_t moment) {
    check_cuda(failed_, "cudaEventRecord");
    check_cuda(cudaEventSynchronize(events_[moment]), "cudaEventSynchronize");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, start_, events_[moment]),
               "cudaEventElapsedTime");
    return milliseconds;
}

}  // namespace bench
