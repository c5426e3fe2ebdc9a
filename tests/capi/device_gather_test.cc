// Hooks with codecs, on buckets of devices: the same bits as on the CPU, step after step, without a
// copy of the bucket in memory of the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ddp/ddp.hpp"
#include "support/cases.h"
#include "support/device_model.h"
#include "support/ranks.h"

namespace device_gather_test {

// Several buckets, in which some parameters are packed and others are not.
const std::vector<std::int64_t> kSizes{5, 3000, 64, 1, 700, 9000, 33, 200};
constexpr int kParams = 8, kSteps = 5;
constexpr int kAbsentStep = 1, kSpoiltStep = 3, kSavedStep = 2;

ddp_context_options options_of_model() {
    auto options = ddp::Context::defaults();
    options.flags = DDP_CONTEXT_FIND_UNUSED;
    options.bucket_cap_bytes = 8'000;
    return options;
}

struct Named {
    const char* name;
    const char* options;
    bool feeds_back;
};

const std::vector<Named> kOfEachKind{
    {"quantize_per_tensor", "min_elements=60", false},
    {"onebit", "min_elements=60", true},
    {"topk", "min_elements=60,ratio=0.07", true},
    {"fp16(onebit)", "min_elements=60", true},
    {"quantize", "min_elements=60,error_feedback=1", true},
};

const std::vector<Named> kHooks{
    {"quantize", "min_elements=60,block=100,rounding=stochastic,error_feedback=1", true},
    {"quantize_per_channel", "min_elements=60,block=100", false},
    {"onebit", "min_elements=60", true},
    {"topk", "min_elements=60,ratio=0.07", true},
// A sanitizer sees enough in these.
#ifndef DDP_SANITIZED
    {"quantize_per_tensor", "min_elements=60", false},
    {"fp16(onebit)", "min_elements=60", true},
    {"onebit", "min_elements=60,block=0", true},
    {"fp16(quantize)", "min_elements=60,type=e5m2,error_feedback=1", true},
    {"quantize", "min_elements=60,type=e4m3", false},
    {"bf16(topk)", "min_elements=60,ratio=0.07", true},
    {"fp16(quantize_per_channel)", "min_elements=60,block=64", false},
#endif
};

// Whether bits depend on the buckets, which are others where parameters lie on several devices.
bool depends_on_buckets(const Named& hook) {
    return hook.feeds_back && std::string(hook.name).find("quantize") != std::string::npos;
}

// Rank 1 has no gradient for parameter 4 in one step, and a NaN in parameter 1 in another.
bool absent(int rank, int p, int step) {
    return step == kAbsentStep && p == 4 && rank == 1;
}

// Gradients of many magnitudes and both signs.
std::vector<float> gradient(int rank, int p, int step) {
    auto random = static_cast<std::uint32_t>(1 + rank + 10 * p + 1000 * step);
    std::vector<float> values(static_cast<std::size_t>(kSizes[static_cast<std::size_t>(p)]));
    for (float& value : values) {
        random = random * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<std::int32_t>(random)) *
                (random % 2048 < 1024 ? 0x1p-31f : 0x1p-34f);
    }
    if (step == kSpoiltStep && p == 1 && rank == 1)
        values[7] = std::numeric_limits<float>::infinity();
    return values;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
    std::vector<std::uint32_t> bits;
    for (const float value : values)
        bits.push_back(std::isnan(value) ? ~0u : std::bit_cast<std::uint32_t>(value));
    return bits;
}

using State = std::vector<unsigned char>;
using Step = std::vector<std::vector<std::uint32_t>>;  // by parameter
struct Training {
    std::vector<Step> steps;
    State middle, end;
};

// Steps from `begin` on; write(p, values) and read(p) reach the gradients.
template <class AnyModel, class Write, class Read>
void train(AnyModel& model, int rank, int begin, Training& training, Write write, Read read) {
    for (int step = begin; step < kSteps; ++step) {
        if (step == kSavedStep) training.middle = model.context.save_hook_state();
        model.context.step_begin();
        for (int p = kParams; p-- > 0;)
            if (!absent(rank, p, step)) write(p, gradient(rank, p, step));
        model.context.finalize();
        Step results;
        for (int p = 0; p < kParams; ++p) results.push_back(bits_of(read(p)));
        training.steps.push_back(std::move(results));
    }
    training.end = model.context.save_hook_state();
}

void train_on_cpu(Model& model, int rank, int begin, Training& training) {
    train(
        model, rank, begin, training,
        [&](int p, const std::vector<float>& values) {
            std::copy(values.begin(), values.end(), model.grad(p));
            model.context.grad_ready(p);
        },
        [&](int p) { return std::vector<float>(model.grad(p), model.grad(p) + model.size(p)); });
}

void train_on_device(DeviceModel& model, int rank, int begin, Training& training) {
    train(
        model, rank, begin, training,
        [&](int p, const std::vector<float>& values) {
            if (model.device(p) < 0) {
                std::copy(values.begin(), values.end(), model.grad(p));
                return model.context.grad_ready(p);
            }
            fake::launch(model.device(p), model.stream(p), [values, memory = model.grad(p)] {
                std::copy(values.begin(), values.end(), fake::at<float>(memory));
            });
            model.context.grad_ready_on(p, model.stream(p));
        },
        [&](int p) { return model.read(p); });
}

std::vector<Training> on_cpu(const Named& hook, int world) {
    std::vector<Training> runs(static_cast<std::size_t>(world));
    on_ranks({world}, [&](int rank, ddp_group* group) {
        Model model(group, kSizes, true, options_of_model());
        model.context.use_hook(hook.name, hook.options);
        model.context.commit();
        train_on_cpu(model, rank, 0, runs[static_cast<std::size_t>(rank)]);
    });
    return runs;
}

void expect_same(const Training& expected, const Training& actual, int begin) {
    for (int step = begin; step < kSteps; ++step)
        for (std::size_t p = 0; p < kParams; ++p)
            EXPECT_TRUE(actual.steps[static_cast<std::size_t>(step - begin)][p] ==
                        expected.steps[static_cast<std::size_t>(step)][p])
                << "step " << step << ", parameter " << p;
    EXPECT_TRUE(actual.end == expected.end) << "states differ";
}

struct Case {
    int world;
    const char* backend;
    bool view;
    std::vector<int> devices;
    unsigned round_robin = 0;
};

class DeviceGatherTest : public DeviceTest, public testing::WithParamInterface<Case> {
protected:
    void run(
        const std::function<void(int rank, ddp_group* group, std::vector<int> devices)>& body) {
        RankOptions options(GetParam().world, GetParam().backend);
        options.round_robin = GetParam().round_robin;
        on_ranks(options, [&](int rank, ddp_group* group) {
            std::vector<int> devices = GetParam().devices;  // each rank begins with another one
            for (int& d : devices)
                if (d >= 0) d = (d + rank) % 2;
            body(rank, group, devices);
        });
    }
};

INSTANTIATE_TEST_SUITE_P(All, DeviceGatherTest,
                         testing::ValuesIn(fewer_if_sanitized<Case>(
                             {Case{1, "shm", true, {0}}, Case{1, "tcp", false, {0}},
                              Case{2, "streams", true, {0}}, Case{3, "streams", false, {0}},
                              Case{2, "shm", false, {0, -1, 1}}, Case{3, "shm", true, {0}},
                              Case{2, "tcp", true, {0, -1}}, Case{3, "tcp", false, {0}},
                              Case{2, "threads", true, {0}, 2}})),
                         [](const auto& test) {
                             const Case& c = test.param;
                             std::string name =
                                 c.backend + std::to_string(c.world) + (c.view ? "view" : "copy");
                             for (int d : c.devices)
                                 name += d < 0 ? std::string("c") : std::to_string(d);
                             return name + (c.round_robin ? "turns" : "");
                         });

TEST_P(DeviceGatherTest, SameBitsAsOnTheCpu) {
    for (const Named& hook : kHooks) {
        if (depends_on_buckets(hook) && GetParam().devices.size() > 1) continue;
        SCOPED_TRACE(testing::Message() << hook.name << " " << hook.options);
        const auto expected = on_cpu(hook, GetParam().world);
        run([&](int rank, ddp_group* group, const std::vector<int>& devices) {
            DeviceModel model(group, kSizes, GetParam().view, devices, options_of_model());
            model.context.use_hook(hook.name, hook.options);
            model.context.commit();
            Training training;
            train_on_device(model, rank, 0, training);
            expect_same(expected[static_cast<std::size_t>(rank)], training, 0);
        });
    }
}

// A state does not say where it was made.
TEST_P(DeviceGatherTest, AStateGoesFromTheCpuToADeviceAndBack) {
    for (const Named& hook : kHooks) {
        if (!hook.feeds_back) continue;
        if (depends_on_buckets(hook) && GetParam().devices.size() > 1) continue;
        SCOPED_TRACE(testing::Message() << hook.name << " " << hook.options);
        const auto expected = on_cpu(hook, GetParam().world);
        std::vector<Training> resumed(expected.size());
        run([&](int rank, ddp_group* group, const std::vector<int>& devices) {
            const auto r = static_cast<std::size_t>(rank);
            DeviceModel model(group, kSizes, GetParam().view, devices, options_of_model());
            model.context.use_hook(hook.name, hook.options);
            model.context.commit();
            model.context.load_hook_state(expected[r].middle);
            resumed[r].middle = model.context.save_hook_state();
            EXPECT_TRUE(resumed[r].middle == expected[r].middle);
            train_on_device(model, rank, kSavedStep, resumed[r]);
            expect_same(expected[r], resumed[r], kSavedStep);
            // Loading forgets the state from before.
            model.context.load_hook_state(expected[r].middle);
            EXPECT_TRUE(model.context.save_hook_state() == expected[r].middle);
        });
        on_ranks({GetParam().world}, [&](int rank, ddp_group* group) {
            const auto r = static_cast<std::size_t>(rank);
            Model model(group, kSizes, true, options_of_model());
            model.context.use_hook(hook.name, hook.options);
            model.context.commit();
            model.context.load_hook_state(resumed[r].middle);
            Training training;
            train_on_cpu(model, rank, kSavedStep, training);
            expect_same(expected[r], training, kSavedStep);
        });
    }
}

// Where the backend takes memory of devices nothing comes to the host, and otherwise only what
// travels.
TEST_P(DeviceGatherTest, TheBucketStaysOnTheDevice) {
    std::uint64_t gradients = 0;
    for (const auto size : kSizes) gradients += static_cast<std::uint64_t>(size) * sizeof(float);
    for (const Named& hook : kOfEachKind) {
        SCOPED_TRACE(testing::Message() << hook.name << " " << hook.options);
        std::uint64_t before = 0;
        run([&](int rank, ddp_group* group, const std::vector<int>& devices) {
            auto options = options_of_model();
            options.flags = 0;
            DeviceModel model(group, kSizes, GetParam().view, devices, options);
            model.context.use_hook(hook.name, hook.options);
            model.context.commit();
            model.borrowed.barrier();
            if (rank == 0) before = fake::copied_bytes();
            model.borrowed.barrier();
            for (int p = kParams; p-- > 0;) model.give(p, 1);
            model.context.finalize();
        });
        const std::uint64_t copied = fake::copied_bytes() - before;
        const auto world = static_cast<std::uint64_t>(GetParam().world);
        if (std::string(GetParam().backend) == "streams" || world == 1)
            EXPECT_EQ(copied, 0u);
        else
            EXPECT_LT(copied, world * (1 + world) * gradients / 3);
    }
}

// A program that waits for no device may be steps ahead of it: that costs no memory.
using DeviceHookMemoryTest = DeviceTest;

TEST_F(DeviceHookMemoryTest, IsUsedAgainBeforeTheDeviceIsDone) {
    std::vector<Named> hooks = kOfEachKind;
    hooks.push_back({"fp16", "", false});
    hooks.push_back({"powersgd", "rank=1,start=0,min_rate=0", true});
    hooks.push_back({"batched_powersgd", "rank=1,start=0,min_rate=0", true});
    for (const Named& hook : hooks) {
        SCOPED_TRACE(testing::Message() << hook.name << " " << hook.options);
        on_ranks(RankOptions(2, "streams"), [&](int, ddp_group* group) {
            auto options = options_of_model();
            options.flags = 0;
            DeviceModel model(group, kSizes, false, {0}, options);
            model.context.use_hook(hook.name, hook.options);
            model.context.commit();
            const auto step = [&] {
                for (int p = kParams; p-- > 0;) model.give(p, 1);
                model.finalize();
            };
            for (int i = 0; i < 3; ++i) step();
            model.borrowed.barrier();
            EXPECT_TRUE(fake::settle());
            const long before = fake::counts().blocks;
            model.borrowed.barrier();
            for (int i = 0; i < 6; ++i) step();
            EXPECT_EQ(fake::counts().blocks, before) << hook.name;
            model.borrowed.barrier();
        });
    }
}

}  // namespace device_gather_test
