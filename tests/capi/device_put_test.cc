// ddp_put_on and ddp_get_on: gradients in memory of a library that reuses it in the order of its
// stream.
#include <unistd.h>

#include <limits>
#include <numeric>

#include "capi/bad_input.h"
#include "support/device_model.h"
#include "support/ranks.h"

namespace device_put_test {

// A library's memory on a device, or on the CPU (-1).
class Array {
public:
    Array(int device, std::size_t count) : device_(device), count_(count) {
        if (device_ >= 0)
            memory_ = static_cast<float*>(fake::allocate(device_, count_ * sizeof(float)));
        else
            memory_ = (on_cpu_ = std::vector<float>(count_)).data();
    }
    ~Array() {
        EXPECT_TRUE(fake::settle());
        if (device_ >= 0) fake::release(memory_);
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    float* memory() const { return memory_; }
    // Enqueues first, first + step, ...
    void write(void* stream, float first, float step = 1) {
        const auto body = [count = count_, first, step](float* values) {
            for (std::size_t k = 0; k < count; ++k)
                values[k] = first + step * static_cast<float>(k);
        };
        if (device_ < 0) return body(memory_);
        fake::launch(device_, stream, [body, memory = memory_] { body(fake::at<float>(memory)); });
    }
    void spoil(void* stream) { write(stream, std::numeric_limits<float>::quiet_NaN(), 0); }
    std::vector<float> read(void* stream) {
        if (device_ < 0) return on_cpu_;
        fake::wait(device_, stream);
        const float* begin = fake::at<float>(memory_);
        return {begin, begin + count_};
    }

private:
    const int device_;
    const std::size_t count_;
    float* memory_ = nullptr;
    std::vector<float> on_cpu_;
};

std::vector<float> counting(std::size_t count, float first) {
    std::vector<float> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
}

struct Case {
    int world;
    const char* backend;
    bool view;
    std::vector<int> devices;
};

class DevicePutTest : public DeviceTest, public testing::WithParamInterface<Case> {
protected:
    static constexpr int kSteps = 4;

    void run(const std::function<void(int rank, ddp_group* group)>& body) {
        on_ranks({GetParam().world, GetParam().backend}, body);
    }
    static ddp_context_options options() {
        auto options = ddp::Context::defaults();
        options.bucket_cap_bytes = 256;
        return options;
    }
};

INSTANTIATE_TEST_SUITE_P(All, DevicePutTest,
                         testing::Values(Case{1, "streams", true, {0}}, Case{1, "shm", false, {0}},
                                         Case{2, "streams", true, {0, 1}},
                                         Case{2, "shm", true, {0}}, Case{3, "tcp", false, {0, -1}},
                                         Case{3, "streams", false, {0, 1}}));

// The memory is used for something else at once, and each step is on another stream, which knows
// nothing of the one before.
TEST_P(DevicePutTest, TheMeanIsThatOfWhatIsPut) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {300, 7, 64}, GetParam().view, GetParam().devices, options());
        model.context.commit();
        std::vector<std::unique_ptr<Array>> given, got;
        for (int p = 0; p < model.count(); ++p)
            for (auto* arrays : {&given, &got})
                arrays->push_back(std::make_unique<Array>(model.device(p), model.size(p)));
        std::vector<void*> streams;
        for (int step = 0; step < kSteps; ++step) {
            std::vector<void*> on{fake::make_stream(0), fake::make_stream(1)};
            streams.insert(streams.end(), on.begin(), on.end());
            const auto stream = [&](int p) -> void* {
                return model.device(p) < 0 ? nullptr
                                           : on[static_cast<std::size_t>(model.device(p))];
            };
            for (int d : {0, 1})
                model.context.set_stream({DDP_DEVICE_CUDA, d}, on[static_cast<std::size_t>(d)]);
            for (int p : {2, 1, 0}) {
                Array& array = *given[static_cast<std::size_t>(p)];
                array.write(stream(p), static_cast<float>(10 * p + rank + step));
                model.context.put_on(p, array.memory(), stream(p));
                array.spoil(stream(p));
            }
            model.context.finalize_enqueue();
            for (int p : {0, 1, 2})
                model.context.get_on(p, got[static_cast<std::size_t>(p)]->memory(), stream(p));
            const float mean = static_cast<float>(GetParam().world - 1) / 2;
            for (int p : {0, 1, 2})
                EXPECT_EQ(got[static_cast<std::size_t>(p)]->read(stream(p)),
                          counting(model.size(p), static_cast<float>(10 * p + step) + mean))
                    << "gradient " << p << " in step " << step;
        }
        given.clear();
        got.clear();
        for (int d : {0, 1}) model.context.set_stream({DDP_DEVICE_CUDA, d}, model.stream(d));
        model.close();
        for (void* stream : streams) fake::free_stream(stream);
    });
}

// A copy that is late: the next step does not change what it reads.
TEST_P(DevicePutTest, TheNextStepWaitsForTheCopy) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {300}, GetParam().view, {0}, options());
        model.context.commit();
        Array even(0, 300), odd(0, 300), got(0, 300);
        void* const other = fake::make_stream(0);
        for (int step = 0; step < kSteps; ++step) {
            void* const stream = step % 2 ? other : model.stream(0);
            Array& given = step % 2 ? odd : even;
            given.write(stream, static_cast<float>(rank + step));
            model.context.put_on(0, given.memory(), stream);
            model.context.finalize_on(stream);
            if (step == kSteps - 2) {
                fake::launch(0, stream, [] { usleep(50'000); });
                model.context.get_on(0, got.memory(), stream);
            }
        }
        const float mean = static_cast<float>(GetParam().world - 1) / 2;
        EXPECT_EQ(got.read(model.stream(0)), counting(300, kSteps - 2 + mean));
        fake::wait(0, other);
        model.close();
        fake::free_stream(other);
    });
}

TEST_P(DevicePutTest, InUnsyncedStepsItReplacesOrAdds) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5}, GetParam().view, {0}, options());
        model.context.commit();
        Array given(0, 5), got(0, 5);
        void* const stream = model.stream(0);
        for (const std::uint32_t flags : {0u, std::uint32_t{DDP_PUT_ADD}}) {
            for (const bool sync : {false, false, true}) {
                model.context.set_sync(sync);
                given.write(stream, static_cast<float>(rank + 1), 0);
                model.context.put_on(0, given.memory(), stream, flags);
                given.spoil(stream);
                model.context.finalize_on(stream);
            }
            model.context.get_on(0, got.memory(), stream);
            const float mean = static_cast<float>(GetParam().world + 1) / 2;
            EXPECT_EQ(got.read(stream), std::vector<float>(5, (flags ? 3 : 1) * mean));
        }
    });
}

// Each adds to what another stream has put, which is late.
TEST_P(DevicePutTest, UnsyncedStepsOnSeveralStreamsAddUp) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {300}, GetParam().view, {0}, options());
        model.context.commit();
        Array first(0, 300), second(0, 300), third(0, 300), fourth(0, 300), got(0, 300);
        Array* const given[] = {&first, &second, &third, &fourth};
        void* const other = fake::make_stream(0);
        for (int step = 0; step < 4; ++step) {
            void* const stream = step % 2 ? other : model.stream(0);
            model.context.set_sync(step == 3);
            if (step == 1) fake::launch(0, stream, [] { usleep(30'000); });
            given[step]->write(stream, static_cast<float>(rank + step), 0);
            model.context.put_on(0, given[step]->memory(), stream, DDP_PUT_ADD);
            given[step]->spoil(stream);
            model.context.finalize_on(stream);
        }
        model.context.get_on(0, got.memory(), other);
        const float mean = static_cast<float>(GetParam().world - 1) / 2;
        EXPECT_EQ(got.read(other), std::vector<float>(300, 6 + 4 * mean));
        model.close();
        fake::free_stream(other);
    });
}

using DevicePutErrorTest = DeviceTest;

TEST_F(DevicePutErrorTest, RefusesOtherMemoryAndMoments) {
    on_ranks({1, "shm"}, [](int, ddp_group* group) {
        DeviceModel model(group, {4, 4}, true, {0, -1});
        model.context.commit();
        ddp_context* const context = model.context.get();
        Array here(0, 4), there(1, 4);
        float on_cpu[4] = {1, 2, 3, 4};
        void* const stream = model.stream(0);
        void* const captured = fake::make_stream(0);
        fake::begin_capture(captured);
        const auto put = [&](const void* memory, void* on, std::uint32_t flags = 0) {
            return calling(ddp_put_on, context, 0, memory, flags, on);
        };
        const auto get = [&](ddp_param param, void* memory, void* on) {
            return calling(ddp_get_on, context, param, memory, on);
        };
        float* const view = model.grad(0);
        expect_refused({
            {"put: host",
             kInvalid,
             {"ddp_put_on", "the CPU", "'p0' is on cuda:0"},
             put(on_cpu, stream),
             0},
            {"put: other",
             kInvalid,
             {"cuda:1", "'p0' is on cuda:0"},
             put(there.memory(), stream),
             0},
            {"put: null", kInvalid, {"gradient is NULL", "4 elements"}, put(nullptr, stream), 0},
            {"put: overlap", kInvalid, {"overlaps", "ddp_grad_ready"}, put(view + 1, stream), 0},
            {"put: flags", DDP_ERROR_UNSUPPORTED, {"flags", "0x8"}, put(here.memory(), stream, 8)},
            {"put: capture", kState, {"captured"}, put(here.memory(), captured)},
            {"put: no stream",
             DDP_ERROR_UNSUPPORTED,
             {"ddp_put_on"},
             calling(ddp_put, context, 0, static_cast<const void*>(here.memory()), 0u),
             0},
            {"get: host",
             kInvalid,
             {"ddp_get_on", "memory is memory of the CPU"},
             get(0, on_cpu, stream),
             0},
            {"get: null", kInvalid, {"memory is NULL"}, get(0, nullptr, stream), 0},
            {"get: the place", kInvalid, {"overlaps"}, get(0, view, stream), 0},
            {"get: device",
             kInvalid,
             {"cuda:0", "'p1' is on the CPU"},
             get(1, here.memory(), stream),
             1},
            {"get: none", kInvalid, {"ddp_get_on", "7"}, get(7, here.memory(), stream)},
            {"get: capture", kState, {"captured"}, get(0, here.memory(), captured)},
        });
        ASSERT_EQ(ddp_put_on(context, 1, on_cpu, 0, nullptr, nullptr), DDP_OK);  // begins the step
        expect_refused({{"get: step", kState, {"under way"}, get(0, here.memory(), stream)}});
        ASSERT_EQ(ddp_put_on(context, 0, here.memory(), 0, stream, nullptr), DDP_OK);
        model.context.finalize_enqueue();
        float back[4] = {};
        ASSERT_EQ(ddp_get_on(context, 1, back, nullptr, nullptr), DDP_OK);
        EXPECT_EQ(std::vector<float>(back, back + 4), counting(4, 1));
        fake::end_capture(captured);
        fake::free_stream(captured);
    });
}

}  // namespace device_put_test
