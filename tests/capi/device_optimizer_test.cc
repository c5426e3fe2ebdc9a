// optimizer.h with parameters on devices, played by fake ones: values and state have the bits of the
// CPU, in the order of streams.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "support/cases.h"
#include "support/device_model.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace device_optimizer_test {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t kSizes[] = {40, 3, 257, 9001, 1, 1000, 70'000};
constexpr int kCount = static_cast<int>(std::size(kSizes));

struct Training {
    const char* label;
    std::string name, options{};
    ddp_dtype value = DDP_F32, gradient = DDP_F32;
    int world = 1;
    std::vector<int> devices = {0};  // -1: the CPU
    bool shard = false, view = false;
};

Bytes numbers(ddp_dtype dtype, std::size_t count, double seed) {
    std::vector<double> wide(count);
    for (std::size_t k = 0; k < count; ++k)
        wide[k] = std::sin(static_cast<double>(k + 1) * seed) * std::ldexp(1.0, k % 5 - 2);
    Bytes bytes(count * libddp::dtype_size(dtype));
    libddp::cpu::convert(bytes.data(), dtype, wide.data(), DDP_F64, count);
    return bytes;
}

// Memory of a device or of the CPU, which is written and read in the order of a stream.
class Memory {
public:
    Memory(int device, void* stream, std::size_t bytes)
        : device_(device), stream_(stream), bytes_(bytes), on_cpu_(device < 0 ? bytes : 0) {
        memory_ = device < 0 ? on_cpu_.data() : fake::allocate(device, bytes);
    }
    ~Memory() {
        if (device_ >= 0) fake::release(memory_);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    void* data() const { return memory_; }
    void write(const Bytes& bytes) const { write(memory_, bytes); }
    void write(void* to, const Bytes& bytes) const {
        if (device_ < 0)
            std::memcpy(to, bytes.data(), bytes.size());
        else
            fake::launch(device_, stream_,
                         [to, bytes] { std::memcpy(fake::alias(to), bytes.data(), bytes.size()); });
    }
    Bytes read() const { return read(memory_, bytes_); }
    Bytes read(const void* from, std::size_t bytes) const {
        Bytes result(bytes);
        if (device_ < 0) {
            std::memcpy(result.data(), from, bytes);
            return result;
        }
        fake::launch(device_, stream_, [&result, from] {
            std::memcpy(result.data(), fake::alias(from), result.size());
        });
        fake::wait(device_, stream_);
        return result;
    }

private:
    const int device_;
    void* const stream_;
    const std::size_t bytes_;
    Bytes on_cpu_;
    void* memory_;
};

class Trained {
public:
    Trained(ddp_group* group, const Training& training)
        : training_(training), borrowed_(group), context(borrowed_, options(training)) {
        for (int d = 0; d < 2; ++d) {
            streams_[d] = fake::make_stream(d);
            context.set_stream({DDP_DEVICE_CUDA, d}, streams_[d]);
        }
        for (int p = 0; p < kCount; ++p) {
            const std::size_t size = size_of(p);
            const int d = device(p);
            values_.push_back(
                std::make_unique<Memory>(d, stream(p), size * libddp::dtype_size(training.value)));
            gradients_.push_back(std::make_unique<Memory>(
                d, stream(p), size * libddp::dtype_size(training.gradient)));
            values_.back()->write(numbers(training.value, size, 0.7 + p));
            const std::string name = "p" + std::to_string(p);
            ddp_param_desc desc;
            ddp_param_desc_init(&desc);
            desc.name = name.c_str();
            desc.shape = &kSizes[p];
            desc.ndim = 1;
            desc.dtype = training.value;
            desc.grad_dtype = training.gradient;
            desc.data = values_.back()->data();
            desc.grad = training.view ? nullptr : gradients_.back()->data();
            if (d >= 0) desc.device = {DDP_DEVICE_CUDA, d};
            ddp_param param = -1;
            ddp::detail::call(ddp_register_param, context.get(), &desc, &param);
        }
        context.commit();
    }
    ~Trained() {
        for (int d = 0; d < 2; ++d) fake::wait(d, streams_[d]);
        ddp_context_free(context.release());
        for (void* stream : streams_) fake::free_stream(stream);
        EXPECT_TRUE(fake::settle());
    }
    Trained(const Trained&) = delete;
    Trained& operator=(const Trained&) = delete;

    // All ranks have the same gradient times 1 + rank; parameter `unused` has none.
    void backward(int rank, int step, int unused = -1) {
        context.step_begin();
        for (int p = kCount; p-- > 0;) {
            if (training_.shard) context.wait_value_on(p, stream(p));
            void* place = gradients_[index(p)]->data();
            if (training_.view) ddp::detail::call(ddp_grad_view, context.get(), p, &place);
            gradients_[index(p)]->write(
                place, numbers(training_.gradient, size_of(p), (1.3 + step) * (p + 1 + rank)));
            if (p != unused) context.grad_ready_on(p, stream(p));
        }
        context.finalize_enqueue();
    }
    const Memory& value(int p) const { return *values_[index(p)]; }
    Bytes values() {
        Bytes all;
        for (int p = 0; p < kCount; ++p) {
            if (training_.shard) context.wait_value_on(p, stream(p));
            const Bytes one = value(p).read();
            all.insert(all.end(), one.begin(), one.end());
        }
        return all;
    }
    // The names and the bytes of all states.
    std::vector<std::pair<std::string, Bytes>> states(ddp::Optimizer& optimizer) const {
        std::vector<std::pair<std::string, Bytes>> all;
        for (const ddp_optimizer_state& s : optimizer.states()) {
            const std::size_t bytes =
                static_cast<std::size_t>(s.count) * libddp::dtype_size(s.dtype);
            const bool counts = std::string(s.name) == "step";
            EXPECT_EQ(s.device.kind,
                      !counts && device(s.param) >= 0 ? DDP_DEVICE_CUDA : DDP_DEVICE_CPU);
            EXPECT_EQ(s.device.index, s.device.kind == DDP_DEVICE_CPU ? 0 : device(s.param));
            const auto* const at = static_cast<const std::byte*>(s.data);
            all.emplace_back(s.name,
                             counts ? Bytes(at, at + bytes) : value(s.param).read(at, bytes));
        }
        return all;
    }
    int device(int p) const {
        return training_.devices[static_cast<std::size_t>(p) % training_.devices.size()];
    }
    void* stream(int p) const { return device(p) < 0 ? nullptr : streams_[device(p)]; }
    std::size_t size_of(int p) const { return static_cast<std::size_t>(kSizes[p]); }

private:
    static std::size_t index(int p) { return static_cast<std::size_t>(p); }
    static ddp_context_options options(const Training& training) {
        auto result = ddp::Context::defaults();
        result.bucket_cap_bytes = result.first_bucket_cap_bytes = 4096;
        result.flags = training.shard ? DDP_CONTEXT_SHARD : DDP_CONTEXT_FIND_UNUSED;
        return result;
    }

    const Training& training_;
    BorrowedGroup borrowed_;

public:
    ddp::Context context;

private:
    void* streams_[2];
    std::vector<std::unique_ptr<Memory>> values_, gradients_;
};

struct Result {
    Bytes values;
    std::vector<std::pair<std::string, Bytes>> states;
};

// Gives that of rank 0. In the third step nobody uses a parameter, before the fourth the program changes
// values, and then a method may get a momentum.
Result train(const Training& training) {
    Result result;
    RankOptions ranks(training.world, "streams");
    ranks.flags = DDP_GROUP_DETERMINISTIC;
    on_ranks(ranks, [&](int rank, ddp_group* group) {
        Trained model(group, training);
        ddp::Optimizer optimizer(model.context, training.name, training.options);
        optimizer.set(2, "weight_decay", 0);
        for (int step = 0; step < 6; ++step) {
            model.backward(rank, step, step == 2 && !training.shard ? 3 : -1);
            if (step == 3)
                for (const int p : {1, 5})
                    model.value(p).write(numbers(training.value, model.size_of(p), 0.9));
            if (step == 4 && training.name == "sgd") optimizer.set("momentum", 0.5);
            optimizer.set("lr", 0.1 / (1 + step));
            optimizer.step(0.75);
            if (training.shard) model.context.publish();
        }
        Result own{model.values(), model.states(optimizer)};
        if (rank == 0) result = own;
    });
    return result;
}

class DeviceOptimizerTest : public DeviceTest, public testing::WithParamInterface<Training> {};

INSTANTIATE_TEST_SUITE_P(
    All, DeviceOptimizerTest,
    testing::ValuesIn(fewer_if_sanitized<Training>({
        {"sgd", "sgd", "lr=0.1,weight_decay=0.2"},
        {"nesterov", "sgd", "momentum=0.9,nesterov=1,weight_decay=0.2", DDP_BF16, DDP_F32, 2, {0}},
        {"adamw", "adamw", "weight_decay=0.2", DDP_F32, DDP_F32, 2, {0, 1, -1}, false, true},
        {"adamw_f64", "adamw", "", DDP_F64, DDP_F64},
        {"adamw_bf16", "adamw", "weight_decay=0.3", DDP_BF16, DDP_BF16, 1, {0, 1}},
        {"adamw_f16", "adamw", "", DDP_F16, DDP_F32, 2, {0}},
        {"adamw_f32_of_f16", "adamw", "", DDP_F32, DDP_F16, 1, {0, -1}, false, true},
        {"lamb", "lamb", "weight_decay=0.2", DDP_F32, DDP_F32, 2, {0, 1, -1}},
        {"lamb_bf16", "lamb", "", DDP_BF16, DDP_F32, 1, {0}},
        {"lamb_f64", "lamb", "", DDP_F64, DDP_F32, 1, {0}},
        {"adamw_shards", "adamw", "", DDP_BF16, DDP_F32, 3, {0, 1}, true, true},
        {"lamb_shards", "lamb", "", DDP_F32, DDP_F32, 3, {0, -1}, true},
    })),
    [](const auto& test) { return std::string(test.param.label); });

TEST_P(DeviceOptimizerTest, HasTheBitsOfTheCpu) {
    Training on_cpu = GetParam();
    on_cpu.devices = {-1};
    const Result want = train(on_cpu), got = train(GetParam());
    EXPECT_EQ(got.values, want.values);
    if (GetParam().shard) return;  // its pieces are others
    ASSERT_EQ(got.states.size(), want.states.size());
    for (std::size_t i = 0; i < want.states.size(); ++i)
        EXPECT_EQ(got.states[i], want.states[i]) << want.states[i].first << " " << i;
}

// The host does not wait for the device, which comes to the step after what is on the caller's
// stream, and before what the caller enqueues later.
TEST_F(DeviceTest, OptimizersStepInTheOrderOfStreams) {
    const Training training{"", "sgd", "lr=1"};
    on_ranks(RankOptions(1, "streams"), [&](int rank, ddp_group* group) {
        Trained model(group, training);
        ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
        model.backward(rank, 0);
        auto go = std::make_shared<std::atomic<bool>>(false);
        fake::launch(0, model.stream(0), [go] {
            while (!*go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
        const float one = 1;
        Bytes ones(sizeof one);
        std::memcpy(ones.data(), &one, sizeof one);
        model.value(4).write(ones);
        optimizer.step();  // returns
        go->store(true);
        float value = 0, gradient = 0;
        std::memcpy(&value, model.value(4).read().data(), sizeof value);
        std::memcpy(&gradient, numbers(DDP_F32, 1, 1.3 * 5).data(), sizeof gradient);
        EXPECT_EQ(value, 1 - gradient);
    });
}

TEST_F(DeviceTest, StateThatTheProgramLoadsCounts) {
    const Training training{"", "sgd"};
    on_ranks(RankOptions(1, "streams"), [&](int rank, ddp_group* group) {
        Trained model(group, training);
        ddp::Optimizer optimizer(model.context, "sgd", "lr=1,momentum=0.5");
        for (const ddp_optimizer_state& s : optimizer.states())
            if (std::string(s.name) == "momentum_buffer" && s.param == 4)
                model.value(4).write(s.data, numbers(DDP_F32, 1, 2));
        float before = 0, after = 0, gradient = 0, momentum = 0;
        std::memcpy(&before, model.value(4).read().data(), 4);
        std::memcpy(&gradient, numbers(DDP_F32, 1, 1.3 * 5).data(), 4);
        std::memcpy(&momentum, numbers(DDP_F32, 1, 2).data(), 4);
        model.backward(rank, 0);
        optimizer.step();
        std::memcpy(&after, model.value(4).read().data(), 4);
        EXPECT_EQ(after, before - (momentum * 0.5f + gradient));
    });
}

TEST_F(DeviceTest, MuonIsRefused) {
    const Training training{"", "muon"};
    on_ranks(RankOptions(1, "streams"), [&](int, ddp_group* group) {
        Trained model(group, training);
        const ddp::Error error = error_of([&] { ddp::Optimizer(model.context, "muon"); });
        EXPECT_EQ(error.status(), DDP_ERROR_UNSUPPORTED);
        EXPECT_THAT(error.what(), HasSubstr("'p0' is on a device, and libddp multiplies matrices "
                                            "for muon on the CPU only"));
    });
}

}  // namespace device_optimizer_test
