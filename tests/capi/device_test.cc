// Parameters on devices, played by fake ones: the same steps as on the CPU, whatever carries the
// data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "capi/bad_input.h"
#include "ddp/ddp.hpp"
#include "support/cases.h"
#include "support/device_model.h"
#include "support/ranks.h"
#include "support/stream_backend.h"

namespace device_test {

// Several buckets, one of them longer than a chunk of staging memory.
const std::vector<std::int64_t> kSizes{5, 700'000, 3, 1, 64, 200};

ddp_context_options with(std::uint32_t flags, ddp_reduction reduction = DDP_REDUCTION_MEAN) {
    auto options = ddp::Context::defaults();
    options.flags = flags;
    options.reduction = reduction;
    options.bucket_cap_bytes = 256;
    return options;
}

struct Case {
    int world;
    const char* backend;
    bool view;
    std::vector<int> devices;
    unsigned flags = 0;
    unsigned round_robin = 0;
    std::uint32_t param_flags = 0;
};

// Parameter p of rank r in a step, and its mean over the ranks.
float gradient(int rank, int p, int step) {
    return static_cast<float>(10 * (rank + 1) + p + 100 * step);
}
double mean(int world, int p, int step) {
    return 10 * (world + 1) / 2.0 + p + 100 * step;
}

class DeviceStepTest : public DeviceTest, public testing::WithParamInterface<Case> {
protected:
    void run(const std::function<void(int rank, ddp_group* group)>& body) {
        RankOptions options(GetParam().world, GetParam().backend);
        options.flags = GetParam().flags;
        options.round_robin = GetParam().round_robin;
        on_ranks(options, body);
    }
    int world() const { return GetParam().world; }
    bool view() const { return GetParam().view; }
    std::uint32_t param_flags() const { return GetParam().param_flags; }
    // Each rank begins with another device.
    std::vector<int> devices(int rank) const {
        std::vector<int> result = GetParam().devices;
        for (int& d : result)
            if (d >= 0) d = (d + rank) % 2;
        return result;
    }
    void expect_means(DeviceModel& model, int step) {
        for (int p = 0; p < model.count(); ++p)
            EXPECT_TRUE(model.holds(p, mean(world(), p, step))) << "step " << step;
    }
};

INSTANTIATE_TEST_SUITE_P(
    All, DeviceStepTest,
    testing::ValuesIn(fewer_if_sanitized<Case>(
        {Case{1, "streams", true, {0}}, Case{1, "shm", false, {0, 1}},
         Case{2, "streams", false, {0}}, Case{2, "streams", true, {0, 1}, DDP_GROUP_NO_MATCH_CHECK},
         Case{3, "streams", true, {0, -1}}, Case{4, "streams", false, {0, 1}},
         Case{2, "threads", true, {0}}, Case{3, "threads-plain", false, {0, 1}},
         Case{4, "threads-plain", true, {0}}, Case{2, "threads-caller", false, {0}},
         Case{2, "threads-single", true, {0, -1}}, Case{2, "tcp", false, {0}},
         Case{4, "tcp", true, {0, 1}}, Case{2, "shm", true, {0}}, Case{3, "shm", false, {0, -1}},
         Case{2, "threads", false, {0, 1}, 0, 2}, Case{2, "streams", true, {0}, 0, 2},
         Case{3, "streams", false, {0, -1}, 0, 0, DDP_PARAM_IN_PLACE},
         Case{2, "shm", false, {0}, 0, 0, DDP_PARAM_IN_PLACE}})),
    [](const auto& test) {
        const Case& c = test.param;
        std::string name = c.backend + std::to_string(c.world) + (c.view ? "view" : "copy");
        for (int d : c.devices) name += d < 0 ? std::string("c") : std::to_string(d);
        if (c.flags) name += "unchecked";
        if (c.round_robin) name += "turns";
        if (c.param_flags) name += "inplace";
        std::erase(name, '-');
        return name;
    });

TEST_P(DeviceStepTest, StepsAverageOverTheRanks) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, kSizes, view(), devices(rank), with(0), 1, param_flags());
        for (int p = 0; p < model.count(); ++p) model.set_value(p, gradient(rank, p, 7));
        model.context.commit();
        for (int p = 0; p < model.count(); ++p) EXPECT_EQ(model.value(p)[0], gradient(0, p, 7));
        for (int step = 0; step < 4; ++step) {
            model.context.step_begin();
            for (int p = 0; p < model.count(); ++p) model.give(p, gradient(rank, p, step));
            if (step == 2)
                model.context.finalize();
            else
                model.finalize();
            expect_means(model, step);
        }
    });
}

// When everything is said the device has not even begun.
TEST_P(DeviceStepTest, AGradientThatIsWrittenLateIsInTheSum) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 3, 300}, view(), {rank % 2}, with(DDP_CONTEXT_NO_REBUILD), 1,
                          param_flags());
        model.context.commit();
        for (int step = 0; step < 2; ++step) {
            fake::launch(rank % 2, model.stream(0),
                         [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
            for (int p : {2, 1, 0}) model.give(p, gradient(rank, p, step));
            model.context.finalize_on(model.stream(0));
            expect_means(model, step);
        }
    });
}

TEST_P(DeviceStepTest, ThreadsAnnounceAtOnceOnTheirOwnStreams) {
    run([&](int rank, ddp_group* group) {
        const int device = rank % 2;
        void* const streams[] = {fake::make_stream(device), fake::make_stream(device)};
        {
            DeviceModel model(group, {5, 300, 7, 64, 9, 1}, view(), {device}, with(0), 1,
                              param_flags());
            model.context.commit();
            for (int step = 0; step < 3; ++step) {
                model.context.step_begin();
                std::vector<float*> grads;
                for (int p = 0; p < 6; ++p) grads.push_back(model.grad(p));
                std::vector<std::thread> threads;
                for (const int half : {0, 1})
                    threads.emplace_back([&, half] {
                        for (int p = 5 - half; p >= 0; p -= 2) {
                            auto* grad = grads[static_cast<std::size_t>(p)];
                            fake::launch(device, streams[half],
                                         [grad, n = model.size(p), v = gradient(rank, p, step)] {
                                             for (std::size_t k = 0; k < n; ++k)
                                                 fake::at<float>(grad)[k] =
                                                     v + static_cast<float>(k);
                                         });
                            model.context.grad_ready_on(p, streams[half]);
                        }
                    });
                for (auto& thread : threads) thread.join();
                model.context.finalize();
                expect_means(model, step);
            }
        }
        for (void* stream : streams) fake::free_stream(stream);
    });
}

// Two layers write a gradient, each a half, on streams of their own.
TEST_P(DeviceStepTest, EveryStreamOfAGradientIsWaitedFor) {
    run([&](int rank, ddp_group* group) {
        const int device = rank % 2;
        void* other = fake::make_stream(device);
        auto* shared = static_cast<float*>(fake::allocate(device, 8));
        {
            DeviceModel model(group, {5, 300}, view(), {device}, with(0), 1, param_flags());
            const ddp_param tied = model.context.add_param<float>("tied", {2}, nullptr, shared,
                                                                  {DDP_DEVICE_CUDA, device}, 0, 2);
            model.context.commit();
            for (int step = 0; step < 2; ++step) {
                model.context.step_begin();
                for (void* stream : {other, model.stream(0)}) {
                    fake::launch(device, stream, [shared, rank, first = stream == other] {
                        std::this_thread::sleep_for(std::chrono::milliseconds(first ? 20 : 1));
                        fake::at<float>(shared)[first ? 0 : 1] = static_cast<float>(2 * rank);
                    });
                    model.context.grad_ready_on(tied, stream);
                }
                for (int p : {1, 0}) model.give(p, 1);
                model.context.finalize();
                for (int half : {0, 1})
                    EXPECT_NEAR(fake::at<float>(shared)[half], world() - 1, 1e-5);
            }
        }
        fake::free_stream(other);
        fake::release(shared);
    });
}

TEST_P(DeviceStepTest, UnsyncedStepsAddUp) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 3, 300}, view(), devices(rank), with(0), 1, param_flags());
        model.context.commit();
        const auto add = [&](int p, float value) {
            float* grad = model.grad(p);
            if (model.device(p) < 0) {
                for (std::size_t k = 0; k < model.size(p); ++k) grad[k] += value;
                return;
            }
            fake::launch(model.device(p), model.stream(p), [grad, value, n = model.size(p)] {
                for (std::size_t k = 0; k < n; ++k) fake::at<float>(grad)[k] += value;
            });
        };
        for (int p = 0; p < 3; ++p) model.give(p, gradient(rank, p, 0));
        model.finalize();
        for (int p = 0; p < 3; ++p) model.fill(p, 0);
        for (int local = 0; local < 2; ++local) {
            const ddp::Context::NoSync scope(model.context);
            for (int p = 0; p < 3; ++p) add(p, static_cast<float>(rank));
            for (int p = 0; p < 3; ++p) model.context.grad_ready_on(p, model.stream(p));
            model.finalize();
        }
        model.context.step_begin();
        add(1, 1);
        model.context.grad_ready_on(1, model.stream(1));  // the others were said before
        model.finalize();
        for (int p = 0; p < 3; ++p) EXPECT_TRUE(model.holds(p, world() - 1 + (p == 1 ? 1 : 0)));
    });
}

// Parameter 1 is used by rank 0 only, parameter 2 by nobody.
TEST_P(DeviceStepTest, UnusedParametersCountAsZero) {
    for (const std::uint32_t more : {0u, std::uint32_t{DDP_CONTEXT_SKIP_UNUSED_BUCKETS}})
        run([&](int rank, ddp_group* group) {
            DeviceModel model(group, {5, 3, 300}, view(), devices(rank),
                              with(DDP_CONTEXT_FIND_UNUSED | more), 1, param_flags());
            model.context.commit();
            for (int step = 0; step < 3; ++step) {
                model.context.step_begin();
                for (int p = 0; p < 3; ++p) model.fill(p, gradient(rank, p, step));
                model.context.grad_ready_on(0, model.stream(0));
                if (rank == 0) model.context.grad_ready_on(1, model.stream(1));
                if (step == 1) model.context.mark_unused({2});
                model.finalize();
                EXPECT_TRUE(model.holds(0, mean(world(), 0, step)));
                EXPECT_FALSE(model.context.used(2));
                EXPECT_TRUE(model.holds(2, gradient(rank, 2, step)));
                const auto values = model.read(1);
                for (std::size_t k = 0; k < values.size(); ++k)
                    EXPECT_NEAR(values[k],
                                (gradient(0, 1, step) + static_cast<float>(k)) /
                                    static_cast<float>(world()),
                                1e-4);
            }
        });
}

// The program adds to gradients over two synced steps. Parameter 1 is used by all and then by rank
// 0 only, parameter 2 at first only.
TEST_P(DeviceStepTest, UnusedParametersCountWithWhatTheyHold) {
    for (const std::uint32_t more : {0u, std::uint32_t{DDP_CONTEXT_SKIP_UNUSED_BUCKETS}})
        run([&](int rank, ddp_group* group) {
            DeviceModel model(group, {5, 3, 300}, view(), devices(rank),
                              with(DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_ACCUMULATE | more), 1,
                              param_flags());
            model.context.commit();
            model.context.step_begin();
            for (int p = 0; p < 3; ++p) model.give(p, gradient(rank, p, 0));
            model.finalize();
            model.context.step_begin();
            const std::vector<float> before = model.read(2);
            for (int p = 0; p < 2; ++p)
                if (p == 0 || rank == 0)
                    model.give(p, static_cast<float>(mean(world(), p, 0)) + gradient(rank, p, 1));
            if (rank == 0) model.context.mark_unused({2});
            model.finalize();
            // fill() adds 0, 1, 2, ...
            EXPECT_TRUE(model.holds(0, mean(world(), 0, 0) + mean(world(), 0, 1)));
            EXPECT_TRUE(model.holds(
                1, mean(world(), 1, 0) + gradient(0, 1, 1) / static_cast<float>(world()), 1e-3));
            EXPECT_EQ(model.read(2), before);
        });
}

TEST_P(DeviceStepTest, WeightsAndJoin) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 300}, view(), devices(rank),
                          with(DDP_CONTEXT_JOIN, DDP_REDUCTION_WEIGHTED_MEAN), 1, param_flags());
        model.context.commit();
        double weighted = 0, total = 0;
        for (int r = 0; r < world(); ++r)
            weighted += (r + 1) * double{gradient(r, 0, 0)}, total += r + 1;
        model.context.set_weight(rank + 1);
        model.context.step_begin();
        for (int p : {1, 0}) model.give(p, gradient(rank, 0, 0));
        model.finalize();
        for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, weighted / total));
        if (rank > 0) return model.context.join();
        model.context.step_begin();
        for (int p : {1, 0}) model.give(p, 4);
        model.finalize();
        for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, 4));
        model.context.join();
    });
}

TEST_P(DeviceStepTest, ADiscardedStepLeavesNothing) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 300}, view(), devices(rank), with(0), 1, param_flags());
        model.context.commit();
        if (rank == 0) model.give(1, 3);
        model.context.discard_step();
        for (int p : {1, 0}) model.give(p, gradient(rank, p, 1));
        model.finalize();
        for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, mean(world(), p, 1)));
    });
}

TEST_P(DeviceStepTest, CallbacksRunWhenTheGradientIsInOrder) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 300, 7}, view(), devices(rank), with(0), 1, param_flags());
        model.context.commit();
        int called = 0;
        model.context.set_reduced_callback([&](ddp_param p, bool used) {
            ++called;
            EXPECT_TRUE(used);
            EXPECT_TRUE(model.holds(p, mean(world(), p, 0)));
        });
        for (int p : {2, 1, 0}) model.give(p, gradient(rank, p, 0));
        model.context.finalize_async();
        model.context.wait(2);
        model.finalize();
        EXPECT_EQ(called, 3);
    });
}

TEST_P(DeviceStepTest, ValuesAreAveragedAndBuffersSent) {
    run([&](int rank, ddp_group* group) {
        const int device = rank % 2;
        auto* buffer = static_cast<float*>(fake::allocate(device, 8));
        {
            DeviceModel model(group, {5, 300}, view(), devices(rank),
                              with(DDP_CONTEXT_NO_INITIAL_BROADCAST), 1, param_flags());
            void* stream = model.stream(0);
            if (model.device(0) != device) {
                fake::release(buffer);
                buffer = static_cast<float*>(fake::allocate(model.device(0), 8));
            }
            model.context.add_buffer<float>("running mean", {2}, buffer,
                                            {DDP_DEVICE_CUDA, model.device(0)});
            model.context.commit();
            for (int p : {1, 0}) model.give(p, 1);
            model.finalize();
            fake::launch(model.device(0), stream, [buffer, rank] {
                fake::at<float>(buffer)[1] = static_cast<float>(rank + 9);
            });
            model.context.step_begin();
            for (int p : {1, 0}) model.set_value(p, gradient(rank, p, 0));
            ASSERT_EQ(ddp_average_parameters(model.context.get(), nullptr, nullptr), DDP_OK);
            for (int p : {1, 0}) EXPECT_NEAR(model.value(p)[1], mean(world(), p, 0) + 1, 1e-4);
            EXPECT_EQ(fake::at<float>(buffer)[1], 9);
            model.close();
        }
        fake::release(buffer);
    });
}

TEST_P(DeviceStepTest, AnOuterOptimizerStepsOnTheHost) {
    run([&](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 300}, view(), devices(rank), with(0), 1, param_flags());
        model.context.commit();
        ddp::Averager averager(model.context, 1);
        auto options = ddp::Averager::outer_defaults();
        options.learning_rate = options.momentum = 0.5;
        averager.set_outer(options);
        for (int step = 0; step < 2; ++step) {
            for (int p : {1, 0}) model.set_value(p, gradient(rank, p, step));
            EXPECT_EQ(averager.step(), world());
        }
        const auto state = averager.save_state();
        averager.load_state(state);
        EXPECT_EQ(averager.save_state(), state);
        for (int p : {1, 0}) {
            const double x = mean(world(), p, 0), d = x - mean(world(), p, 1);
            EXPECT_NEAR(model.value(p)[1], x - 0.5 * (d + 0.5 * d) + 1, 1e-4);
        }
        model.close();
    });
}

TEST_P(DeviceStepTest, AFragmentTravelsWhileItsParametersChange) {
    run([&](int rank, ddp_group* group) {
        for (const ddp_dtype sent : {ddp_dtype{0}, ddp_dtype{DDP_BF16}, ddp_dtype{DDP_U8}}) {
            DeviceModel model(group, {5, 300}, view(), devices(rank), with(0), 1, param_flags());
            model.context.commit();
            ddp::Averager averager(model.context, 4);
            auto options = ddp::Averager::outer_defaults();
            options.kind = DDP_OUTER_SGD;
            options.learning_rate = 0.5;
            options.momentum = 0;
            options.fragments = 2;
            options.delay = 1;
            options.alpha = 0.25;
            options.sent_dtype = sent;
            averager.set_outer(options);
            const auto step = [&](int now) {
                for (int p : {1, 0})
                    model.set_value(p, now == 3 ? 7 : gradient(rank, p, now == 2 ? 1 : 0));
                return averager.step();
            };
            EXPECT_EQ(step(0), world());
            EXPECT_EQ(step(1), 0);
            EXPECT_EQ(step(2), 0);  // the first parameter leaves
            const auto state = averager.save_state();
            averager.load_state(state);
            EXPECT_EQ(averager.save_state(), state);
            EXPECT_EQ(step(3), world());
            const double x = (mean(world(), 0, 0) + mean(world(), 0, 1)) / 2;
            EXPECT_NEAR(model.value(0)[1], 0.25 * 7 + 0.75 * x + 1, sent ? 1 : 1e-4);
            EXPECT_EQ(model.value(1)[1], 8);
            averager.go_back();
            EXPECT_NEAR(model.value(0)[1], x + 1, sent ? 1 : 1e-4);
            EXPECT_NEAR(model.value(1)[1], mean(world(), 1, 0) + 1, 1e-4);
            model.close();
        }
    });
}

// Operations of its host side ask, operations of the device do not.
TEST_F(DeviceTest, AThreadThatACheckCanEndEnqueuesNothingItself) {
    const auto go_on = [](void*) { return std::int32_t{0}; };
    ASSERT_EQ(ddp_set_interrupt_check(go_on, nullptr, nullptr, 0, nullptr), DDP_OK);
    const long before = stream_backend_runs_on_callers();
    on_ranks({2, "streams"}, [](int rank, ddp_group* group) {
        DeviceModel model(group, {5, 300}, true, {rank}, with(0));
        model.context.commit();
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            for (int p : {1, 0}) model.give(p, gradient(rank, p, step));
            model.finalize();
            for (int p : {1, 0}) EXPECT_TRUE(model.holds(p, mean(2, p, step))) << "step " << step;
        }
    });
    EXPECT_EQ(stream_backend_runs_on_callers(), before);
    EXPECT_EQ(ddp_set_interrupt_check(nullptr, nullptr, nullptr, 0, nullptr), DDP_OK);
}

TEST_F(DeviceTest, DevicesAreCounted) {
    std::int32_t devices = 0;
    ASSERT_EQ(ddp_device_count(DDP_DEVICE_CUDA, &devices, nullptr), DDP_OK);
    EXPECT_EQ(devices, 2);
    ASSERT_EQ(ddp_device_count(DDP_DEVICE_CPU, &devices, nullptr), DDP_OK);
    EXPECT_EQ(devices, 1);
    fake::set_device_count(0);
    expect_refused({{"none",
                     DDP_ERROR_UNAVAILABLE,
                     {"no device: the test took them away"},
                     calling(ddp_device_count, DDP_DEVICE_CUDA, &devices)}});
    fake::set_device_count(2);
    expect_refused(
        {{"kind", DDP_ERROR_UNSUPPORTED, {"kind 7"}, calling(ddp_device_count, 7, &devices)}});
}

}  // namespace device_test
