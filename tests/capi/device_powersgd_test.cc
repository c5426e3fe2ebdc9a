// PowerSGD where gradients lie on devices: the bits of the same steps on the CPU, as the fake
// devices compute with its functions.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hooks/matrix_model.h"
#include "hooks/state_file.h"
#include "support/cases.h"
#include "support/device_model.h"
#include "support/ranks.h"

namespace device_powersgd_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kOnCpu = -1;

// Matrices, what is never compressed, and sizes that leave gaps in buckets.
const std::vector<Shape> kShapes{{20, 30}, {13}, {6, 4, 3, 3}, {40, 9}, {7, 5}, {1}};

// A model like MatrixModel, on a fake device or on the CPU.
class PlacedModel {
public:
    PlacedModel(ddp_group* group, int device, ddp_dtype dtype, bool view,
                ddp_context_options options)
        : device_(device),
          dtype_(dtype),
          view_(view),
          borrowed_(group),
          context(borrowed_, options) {
        const ddp_device where =
            on_cpu() ? ddp_device{DDP_DEVICE_CPU, 0} : ddp_device{DDP_DEVICE_CUDA, device};
        if (!on_cpu()) stream_ = fake::make_stream(device);
        for (int i = 0; i < count(); ++i) {
            data_.push_back(allocate(i));
            own_.push_back(view ? nullptr : allocate(i));
            ddp_param_desc desc;
            ddp_param_desc_init(&desc);
            const std::string name = "p" + std::to_string(i);
            desc.name = name.c_str();
            desc.shape = shape(i).data();
            desc.ndim = static_cast<std::int32_t>(shape(i).size());
            desc.dtype = dtype;
            desc.device = where;
            desc.data = data_.back();
            desc.grad = own_.back();
            ddp_param id = -1;
            ddp::detail::call(ddp_register_param, context.get(),
                              static_cast<const ddp_param_desc*>(&desc), &id);
        }
        if (!on_cpu()) context.set_stream(where, stream_);
    }
    ~PlacedModel() {
        if (!on_cpu()) fake::wait(device_, stream_);
        ddp_context_free(context.release());
        if (on_cpu()) return;
        fake::free_stream(stream_);
        EXPECT_TRUE(fake::settle());
        for (void* memory : data_) fake::release(memory);
        for (void* memory : own_)
            if (memory) fake::release(memory);
    }
    PlacedModel(const PlacedModel&) = delete;
    PlacedModel& operator=(const PlacedModel&) = delete;

    static int count() { return static_cast<int>(kShapes.size()); }
    static const Shape& shape(int i) { return kShapes[static_cast<std::size_t>(i)]; }
    AnyParam param(int i) const {
        std::int64_t size = 1;
        for (const std::int64_t extent : shape(i)) size *= extent;
        return {dtype_, size};
    }
    Numbers gradient(int rank, int step, int i) const {
        return some_numbers(param(i), rank, step, i);
    }

    void give(int i, const Numbers& numbers) {
        void* memory = grad(i);
        work([memory, values = to_bytes(numbers, dtype_)](auto reach) {
            std::memcpy(reach(memory), values.data(), values.size());
        });
        if (on_cpu())
            context.grad_ready(i);
        else
            context.grad_ready_on(i, stream_);
    }
    void finalize() {
        if (on_cpu())
            context.finalize();
        else
            context.finalize_on(stream_);
    }
    void step(const std::function<Numbers(int param)>& gradient) {
        context.step_begin();
        for (int i = count(); i-- > 0;) give(i, gradient(i));
        finalize();
    }
    Bytes bytes(int i) {
        Bytes result(numbers_in(param(i)) * libddp::dtype_size(dtype_));
        void* memory = grad(i);
        work([memory, &result](auto reach) {
            std::memcpy(result.data(), reach(memory), result.size());
        });
        if (!on_cpu()) fake::wait(device_, stream_);
        return result;
    }
    Numbers numbers(int i) { return to_numbers(bytes(i).data(), param(i)); }
    Bytes bytes() { return all_bytes(*this); }

private:
    bool on_cpu() const { return device_ == kOnCpu; }
    void* allocate(int i) {
        const std::size_t size = numbers_in(param(i)) * libddp::dtype_size(dtype_);
        return on_cpu() ? on_cpu_.emplace_back(size).data() : fake::allocate(device_, size);
    }
    void* grad(int i) {
        return view_ ? context.grad_view<void>(i) : own_[static_cast<std::size_t>(i)];
    }
    // Calls body(reach) where the memory is: reach(pointer) is what can be read and written there.
    template <class Body>
    void work(Body body) {
        if (on_cpu()) return body([](void* memory) { return memory; });
        fake::launch(device_, stream_,
                     [body] { body([](void* memory) { return fake::alias(memory); }); });
    }

    const int device_;
    const ddp_dtype dtype_;
    const bool view_;
    void* stream_ = nullptr;
    std::vector<void*> data_, own_;
    std::vector<Bytes> on_cpu_;
    BorrowedGroup borrowed_;

public:
    ddp::Context context;
};

struct Case {
    int world;
    const char* backend;
    const char* hook;
    const char* options;
    ddp_dtype dtype = DDP_F32;
    bool view = true;
    unsigned turns = 0;
};

class DevicePowerSgdTest : public DeviceTest, public testing::WithParamInterface<Case> {
protected:
    void run(const std::function<void(int rank, ddp_group* group)>& body) {
        RankOptions options(GetParam().world, GetParam().backend);
        options.round_robin = GetParam().turns;
        on_ranks(options, body);
    }
    std::unique_ptr<PlacedModel> model(ddp_group* group, int device, std::uint32_t flags = 0) {
        auto options = buckets_of(3000);
        options.flags = flags;
        auto m = std::make_unique<PlacedModel>(group, device, GetParam().dtype, GetParam().view,
                                               options);
        m->context.use_hook(GetParam().hook, GetParam().options);
        m->context.commit();
        return m;
    }
};

INSTANTIATE_TEST_SUITE_P(
    All, DevicePowerSgdTest,
    testing::ValuesIn(fewer_if_sanitized<Case>(
        {Case{1, "shm", "powersgd", "rank=1,start=0,min_rate=0.5"},
         Case{2, "shm", "powersgd", "rank=2,start=0,min_rate=0.5", DDP_F32, false},
         Case{3, "shm", "powersgd", "rank=4,start=1,min_rate=0.5"},
         Case{2, "tcp", "powersgd",
              "rank=4,start=0,min_rate=0.5,orthogonalization=gram_schmidt,epsilon=0.01", DDP_F64},
         Case{3, "tcp", "powersgd", "rank=2,start=0,min_rate=0.5,orthogonalization=qr", DDP_BF16,
              false},
         Case{2, "streams", "powersgd", "rank=2,start=0,min_rate=0.5", DDP_F16},
         Case{2, "shm", "powersgd", "rank=2,start=0,min_rate=0.5,warm_start=0"},
         Case{2, "shm", "powersgd", "rank=2,start=0,min_rate=0.5,error_feedback=0"},
         Case{2, "shm", "powersgd", "rank=1,start=0"},
         Case{2, "shm", "fp16(powersgd)", "rank=2,start=0"},
         Case{2, "tcp", "bf16(batched_powersgd)", "rank=2,start=0"},
         Case{2, "shm", "powersgd", "rank=2,start=0,min_rate=0.5", DDP_F32, true, 2},
         Case{1, "shm", "batched_powersgd", "rank=1,start=0"},
         Case{2, "shm", "batched_powersgd", "rank=2,start=0,min_rate=0.5", DDP_F32, true, 2},
         Case{2, "shm", "batched_powersgd", "rank=2,start=1,min_rate=0.5", DDP_F32, false},
         Case{3, "tcp", "batched_powersgd", "rank=4,start=0,min_rate=0.5", DDP_F64},
         Case{2, "streams", "batched_powersgd", "rank=2,start=0,min_rate=0.5", DDP_F16},
         Case{2, "shm", "batched_powersgd",
              "rank=2,start=0,min_rate=0.5,error_feedback=0,warm_start=0"}})),
    [](const auto& test) {
        const Case& c = test.param;
        std::string name =
            std::to_string(test.index) + "_" + c.backend + std::to_string(c.world) + "_" + c.hook;
        for (char& letter : name)
            if (!isalnum(letter)) letter = '_';
        return name;
    });

TEST_P(DevicePowerSgdTest, HasTheBitsOfTheCpu) {
    run([&](int rank, ddp_group* group) {
        const auto on_cpu = model(group, kOnCpu), on_device = model(group, rank % 2);
        for (int step = 0; step < 6; ++step) {
            for (auto* m : {on_cpu.get(), on_device.get()}) {
                if (step == 3) m->context.request_rebuild();
                m->step([&](int i) { return m->gradient(rank, step, i); });
            }
            EXPECT_EQ(on_cpu->bytes(), on_device->bytes()) << "step " << step;
        }
        EXPECT_EQ(on_cpu->context.save_hook_state(), on_device->context.save_hook_state());
    });
}

TEST_P(DevicePowerSgdTest, AnElementThatIsNotFiniteStaysInItsParameter) {
    run([&](int rank, ddp_group* group) {
        const auto on_cpu = model(group, kOnCpu), on_device = model(group, rank % 2);
        for (int step = 0; step < 5; ++step) {
            for (auto* m : {on_cpu.get(), on_device.get()})
                m->step([&](int i) {
                    Numbers values = m->gradient(rank, step, i);
                    if (step == 2 && i == 2 && rank == 0) values[100] = kNan;
                    return values;
                });
            for (int i = 0; i < PlacedModel::count(); ++i) {
                const Numbers wanted = on_cpu->numbers(i), got = on_device->numbers(i);
                for (std::size_t k = 0; k < wanted.size(); ++k) {
                    ASSERT_EQ(std::isnan(wanted[k]), std::isnan(got[k]))
                        << "step " << step << ", parameter " << i;
                    ASSERT_EQ(std::isnan(got[k]), step == 2 && i == 2)
                        << "step " << step << ", parameter " << i;
                    if (std::isnan(got[k])) continue;
                    ASSERT_EQ(got[k], wanted[k]) << "step " << step << ", parameter " << i;
                }
            }
        }
    });
}

// Rank 0 alone has a gradient for parameter 3 in odd steps, and nobody for parameter 0 in step 2.
TEST_P(DevicePowerSgdTest, WhatIsAbsentWaits) {
    for (const std::uint32_t more : {0u, std::uint32_t{DDP_CONTEXT_SKIP_UNUSED_BUCKETS}})
        run([&](int rank, ddp_group* group) {
            const auto on_cpu = model(group, kOnCpu, DDP_CONTEXT_FIND_UNUSED | more),
                       on_device = model(group, rank % 2, DDP_CONTEXT_FIND_UNUSED | more);
            for (int step = 0; step < 5; ++step) {
                for (auto* m : {on_cpu.get(), on_device.get()}) {
                    m->context.step_begin();
                    for (int i = PlacedModel::count(); i-- > 0;)
                        if (!(i == 3 && rank > 0 && step % 2 == 1) && !(i == 0 && step == 2))
                            m->give(i, m->gradient(rank, step, i));
                    m->finalize();
                }
                EXPECT_EQ(on_cpu->bytes(), on_device->bytes()) << "step " << step;
            }
        });
}

TEST_P(DevicePowerSgdTest, AStateGoesFromOnePlaceToAnother) {
    run([&](int rank, ddp_group* group) {
        const auto on_cpu = model(group, kOnCpu), first = model(group, rank % 2),
                   second = model(group, rank % 2);
        const auto step = [&](PlacedModel& m, int number) {
            m.step([&](int i) { return m.gradient(rank, number, i); });
        };
        for (int s = 0; s < 3; ++s) step(*first, s);
        // their buckets are those of later steps
        for (int s = 0; s < 1; ++s) step(*on_cpu, s), step(*second, s);
        const StateFile file = first->context.save_hook_state();
        on_cpu->context.load_hook_state(file);
        EXPECT_EQ(on_cpu->context.save_hook_state(), file);
        second->context.load_hook_state(file);
        EXPECT_EQ(second->context.save_hook_state(), file);
        for (int s = 3; s < 6; ++s) {
            for (auto* m : {on_cpu.get(), first.get(), second.get()}) step(*m, s);
            EXPECT_EQ(on_cpu->bytes(), first->bytes()) << "step " << s;
            EXPECT_EQ(second->bytes(), first->bytes()) << "step " << s;
        }
        second->context.load_hook_state(on_cpu->context.save_hook_state());
        EXPECT_EQ(second->context.save_hook_state(), first->context.save_hook_state());
    });
}

TEST_P(DevicePowerSgdTest, ADiscardedStepLeavesTheRestUsable) {
    run([&](int rank, ddp_group* group) {
        const auto m = model(group, rank % 2);
        m->step([&](int i) { return m->gradient(rank, 0, i); });
        m->context.step_begin();
        if (rank == 0) m->give(5, m->gradient(rank, 1, 5));
        m->context.discard_step();
        for (int step = 1; step < 4; ++step)
            m->step([&](int i) { return m->gradient(rank, step, i); });
        for (int i = 0; i < PlacedModel::count(); ++i)
            for (const double x : m->numbers(i)) ASSERT_TRUE(std::isfinite(x));
    });
}

class DevicesPowerSgdTest : public DeviceTest {};

// Rank 0 has sent what it has when rank 1 ends the group.
TEST_F(DevicesPowerSgdTest, AStepThatFailsLeavesTheErrorOfWhatIsAbsent) {
    for (const char* backend : {"shm", "tcp", "streams"})
        for (const char* hook : {"powersgd", "batched_powersgd"})
            on_ranks({2, backend}, [&](int rank, ddp_group* group) {
                ddp_group* spare = nullptr;
                ASSERT_EQ(ddp_group_split(group, 0, rank, &spare, nullptr), DDP_OK);
                BorrowedGroup next(spare);
                {
                    auto options = buckets_of(1 << 20);
                    options.flags = DDP_CONTEXT_FIND_UNUSED;
                    PlacedModel m(group, rank, DDP_F32, true, options);
                    m.context.use_hook(hook, "rank=2,start=0,min_rate=0.5");
                    m.context.commit();
                    const auto error = [&](int i) {
                        return array_of(m.context.save_hook_state(), "error:p" + std::to_string(i));
                    };
                    for (int s = 0; s < 2; ++s)
                        m.step([&](int i) { return m.gradient(rank, s, i); });
                    const StateFile before[] = {error(0), error(3)};
                    EXPECT_FALSE(before[0].empty() || before[0] == StateFile(before[0].size()));
                    m.context.step_begin();
                    if (rank == 0) {
                        m.context.mark_unused({0, 3});
                        for (const int i : {5, 4, 2, 1}) m.give(i, m.gradient(rank, 2, i));
                    }
                    next.barrier();
                    if (rank == 1) m.context.abort("a test");
                    EXPECT_THROW(m.context.finalize(), ddp::Error);
                    m.context.set_group(next);
                    EXPECT_EQ(error(0), before[0]) << backend << " " << hook;
                    EXPECT_EQ(error(3), before[1]) << backend << " " << hook;
                    m.step([&](int i) { return m.gradient(rank, 2, i); });
                    EXPECT_NE(error(0), before[0]) << backend << " " << hook;
                }
                ddp_group_free(spare);
            });
}

TEST_F(DevicesPowerSgdTest, OneModelOnTwoDevicesAndTheCpu) {
    on_ranks({2, "shm"}, [&](int rank, ddp_group* group) {
        Seen seen;
        for (const bool devices : {false, true}) {
            BorrowedGroup borrowed(group);
            ddp::Context context(borrowed, buckets_of(3000));
            std::vector<Bytes> memory;
            std::vector<void*> on_device;
            void* const streams[] = {fake::make_stream(0), fake::make_stream(1)};
            const auto device_of = [&](int i) { return devices ? i % 3 - 1 : kOnCpu; };
            const Shape shape{24, 30};
            const AnyParam param{DDP_F32, 24 * 30};
            std::vector<float*> grads;
            for (int i = 0; i < 3; ++i) {
                float* grad = nullptr;
                const int d = device_of(i);
                if (d < 0)
                    grad = reinterpret_cast<float*>(
                        memory.emplace_back(24 * 30 * sizeof(float)).data());
                else
                    on_device.push_back(
                        grad = static_cast<float*>(fake::allocate(d, 24 * 30 * sizeof(float))));
                grads.push_back(grad);
                const ddp_device where =
                    d < 0 ? ddp_device{DDP_DEVICE_CPU, 0} : ddp_device{DDP_DEVICE_CUDA, d};
                context.add_param<float>("p" + std::to_string(i), shape, nullptr, grad, where);
                if (d >= 0) context.set_stream(where, streams[d]);
            }
            context.use_hook("powersgd", "rank=2,start=0");
            context.commit();
            for (int step = 0; step < 3; ++step) {
                context.step_begin();
                for (int i = 3; i-- > 0;) {
                    const Bytes values = to_bytes(some_numbers(param, rank, step, i), DDP_F32);
                    const int d = device_of(i);
                    float* grad = grads[static_cast<std::size_t>(i)];
                    if (d < 0) {
                        std::memcpy(grad, values.data(), values.size());
                        context.grad_ready(i);
                    } else {
                        fake::launch(d, streams[d], [grad, values] {
                            std::memcpy(fake::alias(grad), values.data(), values.size());
                        });
                        context.grad_ready_on(i, streams[d]);
                    }
                }
                context.finalize();
                for (int i = 0; i < 3; ++i) {
                    const auto* bytes =
                        reinterpret_cast<const std::byte*>(grads[static_cast<std::size_t>(i)]);
                    if (device_of(i) >= 0)
                        bytes = static_cast<const std::byte*>(fake::alias(bytes));
                    seen.add(devices ? 1 : 0, Bytes(bytes, bytes + 24 * 30 * sizeof(float)));
                }
            }
            ddp_context_free(context.release());
            for (void* stream : streams) fake::free_stream(stream);
            EXPECT_TRUE(fake::settle());
            for (void* m : on_device) fake::release(m);
        }
        EXPECT_TRUE(seen.same(2));
    });
}

}  // namespace device_powersgd_test
