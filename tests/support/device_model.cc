#include "support/device_model.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <utility>

#include "support/stream_backend.h"

DeviceTest::DeviceTest() {
    setenv("DDP_MODULE_PATH", DDP_FAKE_DEVICE_FOLDER, 1);
    register_stream_backend();
    fake::set_delay(100);
    before_ = fake::counts();
}

DeviceTest::~DeviceTest() {
    EXPECT_TRUE(fake::settle());
    // A group that its monitor held last is freed on a thread of its own, which may be late.
    fake::Counts after = fake::counts();
    for (int look = 0; look < 1000 && after != before_; ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        after = fake::counts();
    }
    EXPECT_EQ(after.streams, before_.streams);
    EXPECT_EQ(after.events, before_.events);
    EXPECT_EQ(after.blocks, before_.blocks);
    EXPECT_EQ(after.pinned, before_.pinned);
}

DeviceModel::DeviceModel(ddp_group* group, std::vector<std::int64_t> sizes, bool view,
                         std::vector<int> devices, ddp_context_options options, std::int64_t rows,
                         std::uint32_t param_flags)
    : borrowed(group),
      context(borrowed, options),
      sizes_(std::move(sizes)),
      devices_(std::move(devices)),
      view_(view),
      streams_{fake::make_stream(0), fake::make_stream(1)} {
    for (int i = 0; i < count(); ++i) {
        data_.push_back(allocate(i));
        own_.push_back(view_ ? nullptr : allocate(i));
        const ddp_device where =
            device(i) < 0 ? ddp_device{DDP_DEVICE_CPU, 0} : ddp_device{DDP_DEVICE_CUDA, device(i)};
        std::string name = std::to_string(i);
        std::vector<std::int64_t> shape{sizes_[static_cast<std::size_t>(i)]};
        if (rows > 1) shape = {rows, shape[0] / rows};
        context.add_param<float>(name.insert(0, 1, 'p'), shape, data_.back(), own_.back(), where,
                                 param_flags);
        if (device(i) >= 0) context.set_stream(where, stream(i));
    }
}

float* DeviceModel::allocate(int i) {
    if (device(i) >= 0)
        return static_cast<float*>(fake::allocate(device(i), size(i) * sizeof(float)));
    return on_cpu_.emplace_back(size(i)).data();
}

void DeviceModel::close() {
    for (int d : {0, 1}) fake::wait(d, streams_[static_cast<std::size_t>(d)]);
    ddp_context_free(context.release());
}

DeviceModel::~DeviceModel() {
    close();
    for (void* stream : streams_) fake::free_stream(stream);
    EXPECT_TRUE(fake::settle());
    for (int i = 0; i < count(); ++i)
        for (float* memory :
             {data_[static_cast<std::size_t>(i)], own_[static_cast<std::size_t>(i)]})
            if (memory && device(i) >= 0) fake::release(memory);
}

float* DeviceModel::grad(int i) {
    return view_ ? context.grad_view<float>(i) : own_[static_cast<std::size_t>(i)];
}

void DeviceModel::fill(int i, float value) {
    write(i, grad(i), value);
}

void DeviceModel::write(int i, float* memory, float value) {
    auto body = [n = size(i), value](float* values) {
        for (std::size_t k = 0; k < n; ++k) values[k] = value + static_cast<float>(k);
    };
    if (device(i) < 0) return body(memory);
    fake::launch(device(i), stream(i), [body, memory] { body(fake::at<float>(memory)); });
}

void DeviceModel::finalize() {
    context.finalize_enqueue();
}

std::vector<float> DeviceModel::read(int i, const float* memory, void* stream) {
    std::vector<float> values(size(i));
    if (device(i) < 0) return {memory, memory + size(i)};
    fake::launch(device(i), stream, [&values, memory] {
        const float* begin = fake::at<float>(memory);
        values.assign(begin, begin + values.size());
    });
    fake::wait(device(i), stream);
    return values;
}

bool DeviceModel::holds_on(int i, void* stream, double value, double tolerance) {
    const std::vector<float> values = read_on(i, stream);
    for (std::size_t k = 0; k < values.size(); ++k) {
        const double wanted = value + static_cast<double>(k);
        if (!(std::fabs(values[k] - wanted) <= tolerance * std::fmax(1, std::fabs(wanted)))) {
            ADD_FAILURE() << "gradient " << i << "[" << k << "] is " << values[k] << ", not "
                          << wanted;
            return false;
        }
    }
    return true;
}
