// Streams that wait for one parameter at a time: ddp_wait_param_on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "ddp/ddp.hpp"
#include "support/device_model.h"
#include "support/ranks.h"

namespace device_wait_test {

constexpr int kWorld = 2;

ddp_context_options with(std::uint32_t flags) {
    auto options = ddp::Context::defaults();
    options.flags = flags;
    options.bucket_cap_bytes = 256;
    return options;
}

// Parameter p of rank r in a step, and its mean over the ranks.
float gradient(int rank, int p, int step) {
    return static_cast<float>(10 * (rank + 1) + p + 100 * step);
}
double mean(int p, int step) {
    return 15 + p + 100 * step;
}

// Other streams of the caller's than those of ddp_set_stream.
class Elsewhere {
public:
    Elsewhere() : streams_{fake::make_stream(0), fake::make_stream(1)} {}
    ~Elsewhere() {
        for (void* stream : streams_) fake::free_stream(stream);
    }
    Elsewhere(const Elsewhere&) = delete;
    Elsewhere& operator=(const Elsewhere&) = delete;

    void* stream(const DeviceModel& model, int p) const {
        return model.device(p) < 0 ? nullptr : streams_[model.device(p)];
    }
    void wait_on(DeviceModel& model, int p) const { model.context.wait_on(p, stream(model, p)); }
    bool holds(DeviceModel& model, int p, double value) const {
        return model.holds_on(p, stream(model, p), value);
    }

private:
    void* const streams_[2];
};

class DeviceWaitTest : public DeviceTest,
                       public testing::WithParamInterface<std::tuple<const char*, bool>> {
protected:
    void run(const std::function<void(int rank, ddp_group* group)>& body) {
        on_ranks({kWorld, std::get<0>(GetParam())}, body);
    }
    bool view() const { return std::get<1>(GetParam()); }
    // Two devices and the CPU, for views one device.
    std::vector<int> devices(int rank) const {
        return view() ? std::vector<int>{rank} : std::vector<int>{rank, 1 - rank, -1};
    }
};

INSTANTIATE_TEST_SUITE_P(All, DeviceWaitTest,
                         testing::Combine(testing::Values("streams", "threads", "tcp", "shm"),
                                          testing::Bool()),
                         [](const auto& test) {
                             return std::string(std::get<0>(test.param)) +
                                    (std::get<1>(test.param) ? "_view" : "_copy");
                         });

TEST_P(DeviceWaitTest, OtherStreamsWaitForEachParameter) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 300, 7, 64}, view(), devices(rank), with(0));
        const Elsewhere elsewhere;
        model.context.commit();
        for (int step = 0; step < 4; ++step) {
            model.context.step_begin();
            for (int p : {3, 2, 1, 0}) model.give(p, gradient(rank, p, step));
            model.context.finalize_async();
            for (int p : {3, 1, 2, 0}) {
                elsewhere.wait_on(model, p);
                EXPECT_TRUE(elsewhere.holds(model, p, mean(p, step))) << "step " << step;
            }
            if (step % 2 == 0)
                model.context.finalize();
            else
                model.finalize();
            for (int p : {3, 2, 1, 0})
                EXPECT_TRUE(model.holds(p, mean(p, step))) << "step " << step;
        }
        const ddp::Context::NoSync local(model.context);
        for (int p : {3, 2, 1, 0}) model.give(p, gradient(rank, p, 5));
        model.context.finalize_async();
        elsewhere.wait_on(model, 1);
        model.finalize();
    });
}

// Parameter 1 is used by rank 0 only, so what becomes of it is known at the end.
TEST_P(DeviceWaitTest, OtherStreamsWaitForAnUnusedParameter) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 3, 300}, view(), devices(rank), with(DDP_CONTEXT_FIND_UNUSED));
        const Elsewhere elsewhere;
        model.context.commit();
        for (int p : {2, 0}) model.give(p, gradient(rank, p, 0));
        model.fill(1, gradient(rank, 1, 0));
        if (rank == 0) model.context.grad_ready_on(1, model.stream(1));
        model.context.finalize_async();
        elsewhere.wait_on(model, 1);
        const auto values = model.read_on(1, elsewhere.stream(model, 1));
        for (std::size_t k = 0; k < values.size(); ++k)
            EXPECT_NEAR(values[k],
                        (gradient(0, 1, 0) + static_cast<float>(k)) / static_cast<float>(kWorld),
                        1e-4);
        model.finalize();
    });
}

// On the stream that waits for its parameter, where it may also have the host wait for another one.
TEST_P(DeviceWaitTest, CallbacksRunInTheOrderOfAnotherStream) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 300, 7}, view(), devices(rank), with(0));
        const Elsewhere elsewhere;
        model.context.commit();
        int called = 0;
        model.context.set_reduced_callback([&](ddp_param p, bool) {
            ++called;
            if (p != 2) return;
            EXPECT_TRUE(elsewhere.holds(model, 2, mean(2, 0)));
            model.context.wait(1);
            EXPECT_TRUE(elsewhere.holds(model, 1, mean(1, 0)));
        });
        for (int p : {2, 1, 0}) model.give(p, gradient(rank, p, 0));
        model.context.finalize_async();
        elsewhere.wait_on(model, 2);
        EXPECT_GE(called, 2);
        model.finalize();
        EXPECT_EQ(called, 3);
    });
}

// The host or a stream that waits goes on while a later bucket is on its way: rank 1 computes it
// only when rank 0 has seen the one before.
using DeviceFinalTest = DeviceTest;

TEST_F(DeviceFinalTest, AParameterIsFinalBeforeLaterBuckets) {
    std::promise<void> seen[2];
    const std::shared_future<void> later[2] = {seen[0].get_future().share(),
                                               seen[1].get_future().share()};
    on_ranks({kWorld, "streams"}, [&](int rank, ddp_group* group) {
        DeviceModel model(group, {64, 3000}, rank == 0, {rank}, with(DDP_CONTEXT_NO_REBUILD));
        const Elsewhere elsewhere;
        model.context.commit();
        for (int step = 0; step < 2; ++step) {
            std::promise<void> says;  // also if something throws
            if (rank == 0) says = std::move(seen[step]);
            model.give(1, gradient(rank, 1, step));
            if (rank == 1)
                fake::launch(rank, model.stream(0), [gate = later[step]] { gate.wait(); });
            model.give(0, gradient(rank, 0, step));
            model.context.finalize_async();
            if (rank == 0) {
                if (step == 0)
                    elsewhere.wait_on(model, 1);
                else
                    model.context.wait(1);
                EXPECT_TRUE(elsewhere.holds(model, 1, mean(1, step)));
                says.set_value();
            }
            model.context.finalize();
            EXPECT_TRUE(model.holds(0, mean(0, step)));
        }
    });
}

}  // namespace device_wait_test
