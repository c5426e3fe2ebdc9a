// A small model on one rank whose parameters lie on fake devices, and a test that leaves nothing
// behind there.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/fake_device/fake_device.h"
#include "support/model.h"

// Loads the fake devices, and fails if memory, streams or events outlive the test.
class DeviceTest : public testing::Test {
protected:
    DeviceTest();
    ~DeviceTest() override;

private:
    fake::Counts before_;
};

// Parameter i holds sizes[i] f32, in so many rows (1: it is no matrix), on devices[i %
// devices.size()]; a device of -1 is the CPU.
struct DeviceModel {
    DeviceModel(ddp_group* group, std::vector<std::int64_t> sizes, bool view,
                std::vector<int> devices, ddp_context_options options = ddp::Context::defaults(),
                std::int64_t rows = 1, std::uint32_t param_flags = 0);
    ~DeviceModel();
    DeviceModel(const DeviceModel&) = delete;
    DeviceModel& operator=(const DeviceModel&) = delete;

    // Ends the context, and waits for the streams.
    void close();

    int count() const { return static_cast<int>(sizes_.size()); }
    int device(int i) const { return devices_[static_cast<std::size_t>(i) % devices_.size()]; }
    std::size_t size(int i) const {
        return static_cast<std::size_t>(sizes_[static_cast<std::size_t>(i)]);
    }
    // The caller's stream of a parameter's device; null for the CPU.
    void* stream(int i) const {
        return device(i) < 0 ? nullptr : streams_[static_cast<std::size_t>(device(i))];
    }
    float* grad(int i);

    // Enqueues gradient i = value, value + 1, ...
    void fill(int i, float value);
    // The same, and says so.
    void give(int i, float value) {
        fill(i, value);
        context.grad_ready_on(i, stream(i));
    }
    // The end of a step in stream order, whatever the number of devices.
    void finalize();
    // Gradient i, or the value of parameter i, when its stream comes to this point.
    std::vector<float> read(int i) { return read_on(i, stream(i)); }
    std::vector<float> value(int i) {
        return read(i, data_[static_cast<std::size_t>(i)], stream(i));
    }
    // Gradient i when this stream of its device comes to this point.
    std::vector<float> read_on(int i, void* stream) { return read(i, grad(i), stream); }
    void set_value(int i, float value) { write(i, data_[static_cast<std::size_t>(i)], value); }
    // Whether gradient i is about value, value + 1, ...
    bool holds(int i, double value, double tolerance = 1e-5) {
        return holds_on(i, stream(i), value, tolerance);
    }
    bool holds_on(int i, void* stream, double value, double tolerance = 1e-5);

    BorrowedGroup borrowed;
    ddp::Context context;

private:
    std::vector<float> read(int i, const float* memory, void* stream);
    void write(int i, float* memory, float value);
    float* allocate(int i);

    std::vector<std::int64_t> sizes_;
    std::vector<int> devices_;
    bool view_;
    std::vector<void*> streams_;
    std::vector<float*> data_, own_;
    std::vector<std::vector<float>> on_cpu_;
};
