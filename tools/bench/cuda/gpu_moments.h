// Moments by a GPU's clock.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <vector>

#include "moments.h"

namespace bench {

class GpuMoments final : public Moments {
public:
    // Counts from when this stream comes to this point, for which it waits. All streams are of its
    // device, the current one.
    explicit GpuMoments(void* stream);
    ~GpuMoments() override;
    GpuMoments(const GpuMoments&) = delete;
    GpuMoments& operator=(const GpuMoments&) = delete;

    void reset(std::size_t count) override;
    void mark(std::size_t moment, void* stream) noexcept override;
    double at(std::size_t moment) override;
    double now() const noexcept override { return now_ms() - host_start_; }

private:
    cudaEvent_t start_ = nullptr;
    double host_start_ = 0;
    std::vector<cudaEvent_t> events_;
    std::atomic<cudaError_t> failed_{cudaSuccess};  // of mark(), which must not throw
};

}  // namespace bench
