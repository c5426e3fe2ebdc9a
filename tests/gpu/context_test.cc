// Steps of training whose gradients lie on a GPU, through the public interface. Ranks are threads
// that share the GPUs there are, and meet through the host, or over NCCL where each has one of its
// own.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>

#include "ddp/ddp.h"
#include "gpu/gpu_model.h"
#include "kernels/on_device.h"
#include "support/model.h"
#include "support/ranks.h"

namespace libddp {

std::string testing_gpu::why_skip() {
    return no_gpu();
}

namespace {

using namespace testing_gpu;

class GpuSteps : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override {
        if (std::string(GetParam().backend) != "nccl") return;
        if (device_count(DDP_DEVICE_CUDA) < world() && !(world() == 2 && shares_gpus()))
            GTEST_SKIP() << "a GPU for each rank is needed";
        ddp_error* error = nullptr;
        if (ddp_backend_available("nccl", &error) != 1) GTEST_SKIP() << take_message(error);
    }
    void run(const std::function<void(int rank, ddp_group* group)>& body, std::uint32_t flags = 0) {
        RankOptions options(GetParam().world, GetParam().backend);
        options.flags = flags;
        options.timeout_ms = 60'000;
        on_ranks(options, body);
    }
    int world() const { return GetParam().world; }
};

INSTANTIATE_TEST_SUITE_P(
    All, GpuSteps,
    ::testing::Values(Case{1, "shm", true}, Case{1, "shm", false}, Case{2, "shm", true},
                      Case{3, "shm", false}, Case{4, "shm", true}, Case{2, "tcp", false},
                      Case{4, "tcp", true}, Case{2, "gloo", true}, Case{3, "gloo", false},
                      Case{1, "nccl", true}, Case{1, "nccl", false}, Case{2, "nccl", true},
                      Case{3, "nccl", false}, Case{4, "nccl", true}, Case{2, "shm", true, "fp16"},
                      Case{2, "shm", false, "bf16"}, Case{2, "nccl", false, "fp16"}),
    [](const auto& test) {
        return test.param.backend + std::to_string(test.param.world) +
               (test.param.view ? "view" : "copy") + (test.param.hook ? test.param.hook : "");
    });

TEST_P(GpuSteps, AverageOverTheRanks) {
    run([&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam());
        EXPECT_EQ(model.value(1)[0], 1) << "rank 0's values are everybody's";
        for (int step = 0; step < 4; ++step) {
            model.begin();
            for (int p = kParams; p-- > 0;) model.give(p, gradient(rank, p, step));
            model.finalize();
            for (int p = 0; p < kParams; ++p)
                EXPECT_TRUE(model.holds(p, mean(world(), p, step))) << "step " << step;
        }
    });
}

TEST_P(GpuSteps, AnotherStreamWaitsForEachParameter) {
    run([&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam());
        Gpu other(model.gpu().stream().device());
        for (int step = 0; step < 3; ++step) {
            model.begin();
            for (int p = kParams; p-- > 0;) model.give(p, gradient(rank, p, step));
            OK(ddp_finalize_async(model.context(), &error));
            for (int p = kParams; p-- > 0;) {
                OK(ddp_wait_param_on(model.context(), p, other.handle(), &error));
                EXPECT_TRUE(model.holds(other, p, mean(world(), p, step))) << "step " << step;
            }
            model.finalize();
            EXPECT_TRUE(model.holds(0, mean(world(), 0, step)));
        }
    });
}

// All gradients come through one block of memory, and all means leave through it, in the order of a
// stream that is another one in each step.
TEST_P(GpuSteps, GradientsComeFromMemoryThatIsUsedAgain) {
    run([&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam());
        Gpu streams[2];
        const auto block = model.gpu().allocate(kSizes[1] * 4);
        std::vector<std::shared_ptr<std::byte>> given, got;
        for (int p = 0; p < kParams; ++p) {
            given.push_back(model.gpu().allocate(kSizes[static_cast<std::size_t>(p)] * 4));
            got.push_back(model.gpu().allocate(kSizes[static_cast<std::size_t>(p)] * 4));
        }
        model.gpu().wait();  // until they hold zeros
        const auto move = [&](Gpu& on, void* to, const void* from, int p) {
            on_device::transfer(on.stream(), {{to, from, kSizes[static_cast<std::size_t>(p)]}},
                                DDP_F32, DDP_F32, 1);
        };
        for (int step = 0; step < 3; ++step) {
            Gpu& on = streams[step % 2];
            model.begin();
            for (int p = kParams; p-- > 0;)
                on.write(given[static_cast<std::size_t>(p)].get(),
                         GpuModel::numbers(p, gradient(rank, p, step)));
            for (int p = kParams; p-- > 0;) {
                move(on, block.get(), given[static_cast<std::size_t>(p)].get(), p);
                OK(ddp_put_on(model.context(), p, block.get(), 0, on.handle(), &error));
            }
            OK(ddp_finalize_on(model.context(), on.handle(), &error));
            for (int p = 0; p < kParams; ++p) {
                OK(ddp_get_on(model.context(), p, block.get(), on.handle(), &error));
                move(on, got[static_cast<std::size_t>(p)].get(), block.get(), p);
            }
            for (int p = 0; p < kParams; ++p) {
                const auto expected =
                    values_of<float>(GpuModel::numbers(p, mean(world(), p, step)));
                const auto actual = values_of<float>(
                    on.read(got[static_cast<std::size_t>(p)].get(), expected.size() * 4));
                for (std::size_t k = 0; k < expected.size(); ++k)
                    ASSERT_NEAR(actual[k], expected[k], 1e-5f * std::fmax(1.0f, expected[k]))
                        << "gradient " << p << "[" << k << "] in step " << step;
            }
        }
    });
}

// The host runs ahead: when everything is enqueued the GPU has not even begun.
TEST_P(GpuSteps, AGradientThatIsWrittenLateIsInTheSum) {
    if (world() > 1) GTEST_SKIP() << "through the host a rank waits for its data";
    run([&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam());
        auto late = model.gpu().allocate(kSizes[1] * 4);
        for (int step = 0; step < 3; ++step) {
            model.begin();
            for (int p = kParams; p-- > 0;) model.fill(p, p == 1 ? 50 : gradient(rank, p, step));
            model.gpu().write(late.get(), GpuModel::numbers(1, gradient(rank, 1, step)));
            std::optional<Blocked> blocked;
            // earlier steps have launched all that this one launches
            if (step == 2) blocked.emplace(model.stream());
            on_device::transfer(model.gpu().stream(), {{model.grad(1), late.get(), kSizes[1]}},
                                DDP_F32, DDP_F32, 1);
            for (int p = kParams; p-- > 0;)
                OK(ddp_grad_ready_on(model.context(), p, model.stream(), &error));
            model.finalize();
            if (blocked) blocked->go();
            for (int p = 0; p < kParams; ++p)
                EXPECT_TRUE(model.holds(p, mean(1, p, step))) << "step " << step;
        }
    });
}

// The handle of the per-thread default stream means another stream on the thread that brings the
// last gradient.
TEST_P(GpuSteps, TheStreamOfEachThreadIsItsOwn) {
    if (world() > 1) GTEST_SKIP() << "through the host a rank waits for its data";
    constexpr int kLate = 1;
    void* const own = cudaStreamPerThread;
    run([&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam());
        const auto expected = GpuModel::numbers(kLate, gradient(rank, kLate, 0));
        const auto pinned = allocate_pinned(DDP_DEVICE_CUDA, expected.size());
        std::memcpy(pinned.get(), expected.data(), expected.size());
        model.begin();
        for (int p = kParams; p-- > 0;) model.fill(p, p == kLate ? -1 : gradient(rank, p, 0));
        std::promise<void> announced, finalized;
        std::thread other([&] {
            Blocked blocked(own);
            EXPECT_EQ(cudaMemcpyAsync(model.grad(kLate), pinned.get(), expected.size(),
                                      cudaMemcpyHostToDevice, cudaStreamPerThread),
                      cudaSuccess);
            EXPECT_EQ(ddp_grad_ready_on(model.context(), kLate, own, nullptr), DDP_OK);
            announced.set_value();
            finalized.get_future().wait();
        });
        announced.get_future().wait();
        for (int p = kParams; p-- > 0;) {
            if (p == kLate) continue;
            EXPECT_EQ(ddp_grad_ready_on(model.context(), p, own, nullptr), DDP_OK);
        }
        EXPECT_EQ(ddp_finalize_on(model.context(), model.stream(), nullptr), DDP_OK);
        finalized.set_value();
        other.join();
        for (int p = 0; p < kParams; ++p) EXPECT_TRUE(model.holds(p, mean(1, p, 0)));
    });
}

// Registered memory is given back when the device is done with it, however far behind it is.
TEST_P(GpuSteps, ARebuildBehindABusyDeviceFreesItsBuckets) {
    if (std::string(GetParam().backend) != "nccl")
        GTEST_SKIP() << "other buckets are freed in the order of a stream";
    ::testing::internal::CaptureStderr();
    run([&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam());
        for (int step = 0; step < 3; ++step) {
            std::thread late([&] {
                if (step != 1) return;  // the rebuild
                Blocked blocked(model.stream());
                std::this_thread::sleep_for(std::chrono::milliseconds(600));
            });
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            EXPECT_EQ(ddp_step_begin(model.context(), nullptr), DDP_OK);
            late.join();
            // Another order than that of the first plan.
            for (int p = 0; p < kParams; ++p) model.give(p, gradient(rank, p, step));
            model.finalize();
            for (int p = 0; p < kParams; ++p) EXPECT_TRUE(model.holds(p, mean(world(), p, step)));
        }
    });
    EXPECT_EQ(::testing::internal::GetCapturedStderr().find("is not freed"), std::string::npos);
}

TEST_P(GpuSteps, UnsyncedStepsAddUp) {
    if (GetParam().hook) GTEST_SKIP() << "sums are not exact in 16 bits";
    run([&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam());
        OK(ddp_set_sync(model.context(), 0, &error));
        model.begin();
        for (int p = kParams; p-- > 0;) model.give(p, 100);
        model.finalize();
        EXPECT_TRUE(model.holds(0, 100));
        OK(ddp_set_sync(model.context(), 1, &error));
        model.begin();
        for (int p = kParams; p-- > 0;) model.give(p, gradient(rank, p, 1));
        model.finalize();
        for (int p = 0; p < kParams; ++p) EXPECT_TRUE(model.holds(p, mean(world(), p, 1)));
    });
}

TEST_P(GpuSteps, UnusedParametersKeepWhatTheyHeld) {
    run([&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam(), DDP_CONTEXT_FIND_UNUSED);
        for (int step = 0; step < 3; ++step) {
            model.begin();
            model.fill(3, 5);  // nobody announces it
            for (int p = kParams; p-- > 0;)
                if (p != 3) model.give(p, gradient(rank, p, step));
            model.finalize();
            for (int p = 0; p < kParams; ++p)
                EXPECT_TRUE(p == 3 ? model.holds(3, 5) : model.holds(p, mean(world(), p, step)))
                    << "step " << step;
        }
    });
}

std::vector<unsigned char> state_of(ddp_context* context) {
    void* data = nullptr;
    std::size_t size = 0;
    OK(ddp_hook_state_save(context, &data, &size, &error));
    const auto* bytes = static_cast<const unsigned char*>(data);
    std::vector<unsigned char> state(bytes, bytes + size);
    ddp_free(data);
    return state;
}

class GpuGather : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    All, GpuGather,
    ::testing::Values(Case{2, "shm", true, "quantize_per_tensor", "min_elements=60"},
                      Case{2, "tcp", true, "quantize", "min_elements=60,rounding=stochastic"},
                      Case{2, "tcp", false, "quantize_per_channel", "min_elements=60"},
                      Case{3, "shm", true, "onebit", "min_elements=60"},
                      Case{2, "shm", false, "topk", "min_elements=60,ratio=0.01"},
                      Case{2, "shm", true, "fp16(topk)", "min_elements=60"},
                      Case{1, "shm", false, "bf16(onebit)", "min_elements=60,block=0"}),
    [](const auto& test) {
        std::string name = test.param.hook;
        for (char& c : name)
            if (!isalnum(c)) c = '_';
        return name;
    });

// With what earlier steps left out, and states that go from one place to the other.
TEST_P(GpuGather, SameBitsAsOnTheCpu) {
    RankOptions options(GetParam().world, GetParam().backend);
    options.timeout_ms = 60'000;
    on_ranks(options, [&](int rank, ddp_group* group) {
        GpuModel model(group, GetParam());
        Model on_cpu(group, {kSizes.begin(), kSizes.end()}, true);
        on_cpu.context.use_hook(GetParam().hook, GetParam().hook_options);
        on_cpu.context.commit();
        for (int step = 0; step < 3; ++step) {
            model.begin();
            on_cpu.context.step_begin();
            for (int p = kParams; p-- > 0;) {
                const auto values = values_of<float>(GpuModel::numbers(p, gradient(rank, p, step)));
                std::copy(values.begin(), values.end(), on_cpu.grad(p));
                model.give(p, gradient(rank, p, step));
            }
            model.finalize();
            for (int p = kParams; p-- > 0;) on_cpu.context.grad_ready(p);
            on_cpu.context.finalize();
            for (int p = 0; p < kParams; ++p) {
                const std::vector<float> actual = model.read(p);
                EXPECT_EQ(std::memcmp(actual.data(), on_cpu.grad(p), actual.size() * 4), 0)
                    << "gradient " << p;
            }
            const auto state = state_of(model.context());
            EXPECT_TRUE(state == on_cpu.context.save_hook_state()) << "after step " << step;
            OK(ddp_hook_state_load(model.context(), state.data(), state.size(), 0, &error));
        }
    });
}

}  // namespace
}  // namespace libddp
