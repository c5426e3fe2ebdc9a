// PowerSGD on a GPU: the same steps as with gradients in CPU memory, but for the last bits of sums.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <list>

#include "ddp/ddp.h"
#include "gpu/gpu.h"
#include "hooks/matrix_model.h"

namespace libddp {
namespace {

using namespace testing_gpu;

const std::vector<Shape> kShapes{{200, 300}, {130}, {64, 32, 3, 3}, {5000, 9}, {7, 5}};

// A MatrixModel's parameters, with gradients of their own on a GPU.
class GpuMatrices {
public:
    GpuMatrices(ddp_group* group, ddp_dtype dtype, const char* hook, const char* options)
        : dtype_(dtype),
          gpu_({DDP_DEVICE_CUDA, ddp_group_rank(group) % device_count(DDP_DEVICE_CUDA)}),
          borrowed_(group),
          context(borrowed_) {
        const ddp_device device = gpu_.stream().device();
        for (int i = 0; i < count(); ++i) {
            const Shape& shape = kShapes[static_cast<std::size_t>(i)];
            grads_.push_back(gpu_.allocate(bytes_of_param(i)));
            const std::string name = "p" + std::to_string(i);
            ddp_param_desc desc;
            ddp_param_desc_init(&desc);
            desc.name = name.c_str();
            desc.shape = shape.data();
            desc.ndim = static_cast<std::int32_t>(shape.size());
            desc.dtype = dtype;
            desc.device = device;
            desc.grad = grads_.back().get();
            ddp_param id = -1;
            ddp::detail::call(ddp_register_param, context.get(),
                              static_cast<const ddp_param_desc*>(&desc), &id);
        }
        gpu_.wait();
        context.set_stream(device, gpu_.handle());
        context.use_hook(hook, options);
        context.commit();
    }
    ~GpuMatrices() {
        ddp_context_free(context.release());
        gpu_.wait();
    }
    GpuMatrices(const GpuMatrices&) = delete;
    GpuMatrices& operator=(const GpuMatrices&) = delete;

    static int count() { return static_cast<int>(kShapes.size()); }
    AnyParam param(int i) const {
        std::int64_t size = 1;
        for (const std::int64_t extent : kShapes[static_cast<std::size_t>(i)]) size *= extent;
        return {dtype_, size};
    }
    void step(const std::function<Numbers(int param)>& gradient) {
        context.step_begin();
        for (int i = count(); i-- > 0;) {
            gpu_.write(grads_[static_cast<std::size_t>(i)].get(), to_bytes(gradient(i), dtype_));
            context.grad_ready_on(i, gpu_.handle());
        }
        context.finalize_on(gpu_.handle());
    }
    Numbers numbers(int i) {
        const auto bytes = gpu_.read(grads_[static_cast<std::size_t>(i)].get(), bytes_of_param(i));
        return to_numbers(bytes.data(), param(i));
    }

private:
    std::size_t bytes_of_param(int i) const {
        return static_cast<std::size_t>(param(i).count) * dtype_size(dtype_);
    }

    const ddp_dtype dtype_;
    Gpu gpu_;
    BorrowedGroup borrowed_;
    std::vector<std::shared_ptr<std::byte>> grads_;

public:
    ddp::Context context;
};

struct Job {
    int world;
    const char* backend;
    const char* hook;
    const char* options;
    ddp_dtype dtype = DDP_F32;
};

class GpuPowerSgd : public ::testing::TestWithParam<Job> {
protected:
    void run(const std::function<void(int rank, ddp_group* group)>& body) {
        RankOptions options(GetParam().world, GetParam().backend);
        options.timeout_ms = 60'000;
        on_ranks(options, body);
    }
    // Rounding errors of f32, which grow from step to step, or one rounding of the result.
    double tolerance() const {
        return GetParam().dtype == DDP_F64 ? 1e-9 : GetParam().dtype == DDP_F32 ? 2e-3 : 2e-2;
    }
};

INSTANTIATE_TEST_SUITE_P(
    All, GpuPowerSgd,
    ::testing::Values(Job{1, "shm", "powersgd", "rank=1,start=0"},
                      Job{2, "shm", "powersgd", "rank=2,start=0"},
                      Job{3, "shm", "powersgd", "rank=4,start=1", DDP_F64},
                      Job{2, "tcp", "powersgd", "rank=2,start=0,orthogonalization=qr", DDP_BF16},
                      Job{2, "shm", "batched_powersgd", "rank=4,start=0", DDP_F64},
                      Job{2, "shm", "batched_powersgd", "rank=2,start=0", DDP_F16}),
    [](const auto& test) {
        return std::to_string(test.index) + test.param.backend + std::to_string(test.param.world) +
               test.param.hook;
    });

TEST_P(GpuPowerSgd, StepsAreThoseOfTheCpu) {
    run([&](int rank, ddp_group* group) {
        MatrixModel on_cpu(group, kShapes, GetParam().dtype);
        on_cpu.context.use_hook(GetParam().hook, GetParam().options);
        on_cpu.context.commit();
        GpuMatrices on_gpu(group, GetParam().dtype, GetParam().hook, GetParam().options);
        const auto compare = [&](int step) {
            const auto values = [&](int i) { return some_numbers(on_gpu.param(i), rank, step, i); };
            on_cpu.step(values);
            on_gpu.step(values);
            for (int i = 0; i < on_gpu.count(); ++i)
                EXPECT_LE(distance(on_gpu.numbers(i), on_cpu.numbers(i)), tolerance())
                    << i << " in step " << step;
        };
        for (int step = 0; step < 4; ++step) compare(step);
        // The state of one goes on in the other.
        const auto state = on_gpu.context.save_hook_state();
        on_cpu.context.load_hook_state(state);
        EXPECT_EQ(on_cpu.context.save_hook_state(), state);
        on_gpu.context.load_hook_state(state);
        EXPECT_EQ(on_gpu.context.save_hook_state(), state);
        for (int step = 4; step < 6; ++step) compare(step);
    });
}

TEST_P(GpuPowerSgd, AnElementThatIsNotFiniteStaysInItsParameter) {
    run([&](int rank, ddp_group* group) {
        GpuMatrices m(group, GetParam().dtype, GetParam().hook, GetParam().options);
        for (int step = 0; step < 4; ++step) {
            m.step([&](int i) {
                Numbers values = some_numbers(m.param(i), rank, step, i);
                if (step == 2 && i == 2 && rank == 0)
                    values[1000] = std::numeric_limits<double>::quiet_NaN();
                return values;
            });
            for (int i = 0; i < m.count(); ++i) {
                const Numbers got = m.numbers(i);
                const bool bad = step == 2 && i == 2;
                EXPECT_TRUE(std::all_of(got.begin(), got.end(),
                                        [&](double x) { return std::isnan(x) == bad; }))
                    << "step " << step << ", parameter " << i;
            }
        }
    });
}

}  // namespace
}  // namespace libddp
