// A model of one rank whose parameters and gradients are on a GPU.
#pragma once

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddp/ddp.h"
#include "gpu/gpu.h"
#include "support/model.h"
#include "support/ranks.h"

namespace libddp::testing_gpu {

// An error on a rank fails the test, and its group.
#define OK(call)                                                             \
    do {                                                                     \
        ddp_error* error = nullptr;                                          \
        if ((call) != DDP_OK) throw std::runtime_error(take_message(error)); \
    } while (0)

// Buckets of one and of several parameters, one of them longer than the chunks in which data goes
// through the host.
inline const std::vector<std::size_t> kSizes{5, 1'200'000, 3, 1, 64, 200'000};

struct Case {
    int world;
    const char* backend;
    bool view;
    const char* hook = nullptr;
    const char* hook_options = "";
};

// A model of one rank, whose gradients are filled by copies enqueued on a stream.
class GpuModel {
public:
    // before_commit: called with the context.
    GpuModel(
        ddp_group* group, const Case& test, std::uint32_t flags = 0,
        const std::function<void(ddp_context*)>& before_commit = [](ddp_context*) {})
        : view_(test.view),
          gpu_({DDP_DEVICE_CUDA, ddp_group_rank(group) % device_count(DDP_DEVICE_CUDA)}),
          device_(gpu_.stream().device()) {
        ddp_context_options options;
        ddp_context_options_init(&options);
        options.flags = flags;
        options.bucket_cap_bytes = 100'000;
        OK(ddp_context_create(group, &options, &context_, &error));
        for (std::size_t i = 0; i < kSizes.size(); ++i) {
            values_.push_back(gpu_.allocate(kSizes[i] * 4));
            own_.push_back(view_ ? nullptr : gpu_.allocate(kSizes[i] * 4));
            const std::string name = "p" + std::to_string(i);
            const auto count = static_cast<std::int64_t>(kSizes[i]);
            ddp_param_desc desc;
            ddp_param_desc_init(&desc);
            desc.name = name.c_str();
            desc.shape = &count;
            desc.ndim = 1;
            desc.device = device_;
            desc.data = values_.back().get();
            desc.grad = own_.back().get();
            ddp_param param = -1;
            OK(ddp_register_param(context_, &desc, &param, &error));
        }
        gpu_.wait();
        OK(ddp_set_stream(context_, device_.kind, device_.index, stream(), &error));
        if (test.hook) OK(ddp_use_hook(context_, test.hook, test.hook_options, &error));
        set_value(1, static_cast<float>(1 + ddp_group_rank(group)));
        before_commit(context_);
        // nobody allocates while another rank's kernels wait for this one
        OK(ddp_barrier(group, nullptr, &error));
        OK(ddp_commit(context_, &error));
    }
    ~GpuModel() {
        ddp_context_free(context_);
        gpu_.wait();
    }
    GpuModel(const GpuModel&) = delete;
    GpuModel& operator=(const GpuModel&) = delete;

    ddp_context* context() const { return context_; }
    // Its gradients and parameters stay.
    void free_context() {
        ddp_context_free(context_);
        context_ = nullptr;
    }
    Gpu& gpu() { return gpu_; }
    void* stream() const { return gpu_.handle(); }
    std::byte* grad(int i) const {
        if (!view_) return own_[static_cast<std::size_t>(i)].get();
        void* memory = nullptr;
        EXPECT_EQ(ddp_grad_view(context_, i, &memory, nullptr), DDP_OK);
        return static_cast<std::byte*>(memory);
    }
    void set_value(int i, float value) {
        gpu_.write(values_[static_cast<std::size_t>(i)].get(), numbers(i, value));
    }
    std::vector<float> value(int i) {
        return values_of<float>(gpu_.read(values_[static_cast<std::size_t>(i)].get(),
                                          kSizes[static_cast<std::size_t>(i)] * 4));
    }
    // value, value + 1, ... (modulo 8, so that sums are exact in f16, too)
    void fill(int i, float value) { gpu_.write(grad(i), numbers(i, value)); }
    std::vector<float> read(int i) { return read(gpu_, i); }
    std::vector<float> read(Gpu& on, int i) {
        return values_of<float>(on.read(grad(i), kSizes[static_cast<std::size_t>(i)] * 4));
    }
    void give(int i, float value) {
        fill(i, value);
        OK(ddp_grad_ready_on(context_, i, stream(), &error));
    }
    void finalize() { OK(ddp_finalize_on(context_, stream(), &error)); }
    void begin() { OK(ddp_step_begin(context_, &error)); }
    // Whether gradient i is value, value + 1, ... in the order of the stream, or of another one.
    ::testing::AssertionResult holds(int i, float value) { return holds(gpu_, i, value); }
    ::testing::AssertionResult holds(Gpu& on, int i, float value) {
        constexpr float tolerance = 1e-5f;
        const auto expected = values_of<float>(numbers(i, value));
        const auto actual = read(on, i);
        for (std::size_t k = 0; k < expected.size(); ++k)
            if (!(std::fabs(actual[k] - expected[k]) <=
                  tolerance * std::fmax(1.0f, std::fabs(expected[k]))))
                return ::testing::AssertionFailure() << "gradient " << i << "[" << k << "] is "
                                                     << actual[k] << ", not " << expected[k];
        return ::testing::AssertionSuccess();
    }

    static std::vector<std::byte> numbers(int i, float value) {
        std::vector<float> result(kSizes[static_cast<std::size_t>(i)]);
        for (std::size_t k = 0; k < result.size(); ++k)
            result[k] = value + static_cast<float>(k % 8);
        return bytes_of(result);
    }

private:
    const bool view_;
    Gpu gpu_;
    const ddp_device device_;
    ddp_context* context_ = nullptr;
    std::vector<std::shared_ptr<std::byte>> values_, own_;
};

constexpr int kParams = 6;

inline float gradient(int rank, int param, int step) {
    return static_cast<float>(2 * rank + param + 8 * step);
}
inline float mean(int world, int param, int step) {
    return static_cast<float>(world - 1 + param + 8 * step);
}

}  // namespace libddp::testing_gpu
