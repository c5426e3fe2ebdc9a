// A GPU for tests. Where there is none main.cc runs none of them.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/stream.h"
#include "kernels/on_device.h"
#include "util/error.h"

namespace libddp::testing_gpu {

// Why there is no GPU here; empty: there is one.
inline std::string no_gpu() {
    try {
        device_count(DDP_DEVICE_CUDA);
        return {};
    } catch (const Error& error) {
        return error.info().message;
    }
}

// Whether the environment lets NCCL put two ranks on one GPU.
inline bool shares_gpus() {
    const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return shared && std::string(shared) == "1";
}

// Why a program's tests cannot run here; empty if they can. Each program has its own.
std::string why_skip();

constexpr ddp_device kFirst{DDP_DEVICE_CUDA, 0};

// Copies to and from the device, waiting for its end: for tests, where nothing else waits. Pinned
// memory is taken and given back by calls that may wait for all kernels of the GPU, those of
// another rank included, which wait for this one's: it is there from the beginning, and stays to
// the end.
class Gpu {
public:
    explicit Gpu(const ddp_device& device = kFirst) : stream_(on_device::make_stream(device)) {
        pinned(kPinnedBytes);
    }
    const DeviceStream& stream() const { return *stream_; }
    void* handle() const { return stream_->handle(); }

    std::shared_ptr<std::byte> allocate(std::size_t bytes) { return stream_->allocate(bytes); }
    std::shared_ptr<std::byte> upload(const std::vector<std::byte>& values) {
        auto memory = allocate(values.empty() ? 1 : values.size());
        write(memory.get(), values);
        return memory;
    }
    void write(void* memory, const std::vector<std::byte>& values) {
        if (values.empty()) return;
        std::memcpy(pinned(values.size()), values.data(), values.size());
        stream_->copy_to_device(memory, pinned(values.size()), values.size());
        wait();
    }
    std::vector<std::byte> read(const void* memory, std::size_t bytes) {
        std::vector<std::byte> values(bytes);
        if (bytes == 0) return values;
        stream_->copy_to_host(pinned(bytes), memory, bytes);
        wait();
        std::memcpy(values.data(), pinned(bytes), bytes);
        return values;
    }
    void wait() {
        const EventPtr here = stream_->record();
        for (int looks = 0; looks < 600; ++looks)
            if (here->wait(std::chrono::milliseconds(100))) return;
        fail(DDP_ERROR_TIMEOUT, "the GPU did not end within a minute");
    }

private:
    static constexpr std::size_t kPinnedBytes = std::size_t{32} << 20;

    std::byte* pinned(std::size_t bytes) {
        if (bytes > pinned_bytes_) {
            pinned_bytes_ = bytes > kPinnedBytes ? 2 * bytes : kPinnedBytes;
            pinned_.push_back(allocate_pinned(DDP_DEVICE_CUDA, pinned_bytes_));
        }
        return pinned_.back().get();
    }

    const StreamPtr stream_;
    std::vector<std::shared_ptr<std::byte>> pinned_;  // the last is the largest
    std::size_t pinned_bytes_ = 0;
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}
template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

// Makes a stream wait until it goes, or for ten seconds. Kernels that are launched meanwhile must
// have been launched before: the first launch of each may load its code, which may wait for the
// GPU.
class Blocked {
public:
    explicit Blocked(void* stream) : go_(std::make_shared<std::atomic<bool>>(false)) {
        auto* held = new std::shared_ptr<std::atomic<bool>>(go_);
        const auto wait = [](void* data) {
            auto* go = static_cast<std::shared_ptr<std::atomic<bool>>*>(data);
            for (int i = 0; i < 10000 && !go->get()->load(); ++i)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            delete go;
        };
        if (cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), wait, held) != cudaSuccess) {
            delete held;
            fail(DDP_ERROR_UNAVAILABLE, "cudaLaunchHostFunc failed");
        }
    }
    ~Blocked() { go(); }
    void go() { *go_ = true; }

private:
    std::shared_ptr<std::atomic<bool>> go_;
};

}  // namespace libddp::testing_gpu
