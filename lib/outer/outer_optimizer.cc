#include "outer/outer_optimizer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "device/host_copy.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/hash.h"

namespace libddp {
namespace {

constexpr const char* kOuter = "outer";
constexpr const char* kMomentum = "momentum";
constexpr const char* kStarted = "started";
// Numbers of f16 and bf16 that are f32 at one time: few enough for the L1 cache.
constexpr std::size_t kBlock = 2048;

ddp_dtype dtype_of_parts(ddp_dtype dtype) {
    if (dtype == DDP_C64) return DDP_F32;
    return dtype == DDP_C128 ? DDP_F64 : dtype;
}

}  // namespace

OuterOptimizer::OuterOptimizer(const ParamTable& table, const ddp_outer_options& options)
    : table_(table), options_(options) {
    for (std::int32_t i = 0; i < table.size(); ++i) {
        const Param& p = table[i];
        if (p.ignored || !is_floating(p.dtype) || p.bytes == 0) continue;
        const ddp_dtype part = dtype_of_parts(p.dtype), dtype = compute_dtype(part);
        const std::size_t count = p.bytes / dtype_size(part);
        values_.push_back({i, dtype, count, std::vector<std::byte>(count * dtype_size(dtype)), {}});
    }
    make_momentum();
}

void OuterOptimizer::set_rates(const ddp_outer_options& options) {
    options_ = options;
    make_momentum();
}

void OuterOptimizer::make_momentum() {
    for (Values& v : values_)
        if (options_.momentum == 0)
            v.momentum = {};
        else
            v.momentum.resize(v.outer.size());
}

std::uint64_t OuterOptimizer::hash() const {
    Hash hash;
    hash.add(static_cast<std::uint64_t>(options_.kind)).add(started_ ? 1 : 0);
    for (double number : {options_.learning_rate, options_.momentum, inner_rate()})
        hash.add(std::bit_cast<std::uint64_t>(number));
    return hash.value();
}

void OuterOptimizer::step(const ContextStreams& streams, std::int64_t timeout_ms) {
    const StreamScope order(streams);
    HostCopies copies(timeout_ms);
    std::vector<std::byte> fetched;
    for (Values& v : values_) {
        const Param& p = table_[v.param];
        const StreamPtr stream = streams.stream(p.device);
        if (!stream) {
            update(v, static_cast<std::byte*>(p.data));
            continue;
        }
        fetched.resize(p.bytes);
        copies.out(*stream, fetched.data(), p.data, p.bytes);
        update(v, fetched.data());
        if (started_) copies.in(*stream, p.data, fetched.data(), p.bytes);
    }
    started_ = true;
}

void OuterOptimizer::update(Values& v, std::byte* average) const {
    const ddp_dtype stored = dtype_of_parts(table_[v.param].dtype);
    const std::size_t size = dtype_size(v.dtype);
    const cpu::OuterStep step{options_.kind == DDP_OUTER_NESTEROV, options_.learning_rate,
                              options_.momentum, inner_rate()};
    float converted[kBlock];
    for (std::size_t begin = 0; begin < v.count; begin += kBlock) {
        const std::size_t n = std::min(kBlock, v.count - begin);
        std::byte* const there = average + begin * dtype_size(stored);
        void* const here = stored == v.dtype ? static_cast<void*>(there) : converted;
        if (here != there) cpu::convert(here, v.dtype, there, stored, n);
        std::byte* const outer = v.outer.data() + begin * size;
        if (!started_) {
            std::memcpy(outer, here, n * size);
            continue;
        }
        cpu::outer_step(here, outer,
                        v.momentum.empty() ? nullptr : v.momentum.data() + begin * size, n, v.dtype,
                        step);
        if (here != there) cpu::convert(there, stored, here, v.dtype, n);
    }
}

void OuterOptimizer::restore(const ContextStreams& streams, std::int64_t timeout_ms) const {
    if (!started_) return;
    const StreamScope order(streams);
    HostCopies copies(timeout_ms);
    std::vector<std::byte> sent;
    for (const Values& v : values_) {
        const Param& p = table_[v.param];
        const StreamPtr stream = streams.stream(p.device);
        if (stream) sent.resize(p.bytes);
        std::byte* const there = stream ? sent.data() : static_cast<std::byte*>(p.data);
        cpu::convert(there, dtype_of_parts(p.dtype), v.outer.data(), v.dtype, v.count);
        if (stream) copies.in(*stream, p.data, there, p.bytes);
    }
}

void OuterOptimizer::save(HookState& state) const {
    state.numbers[kStarted] = started_ ? 1 : 0;
    if (!started_) return;
    const auto add = [&](const Values& v, const char* key, const std::vector<std::byte>& numbers) {
        if (!numbers.empty())
            state.arrays.push_back({v.param,
                                    key,
                                    v.dtype,
                                    {static_cast<std::int64_t>(v.count)},
                                    true,
                                    numbers.data(),
                                    numbers.size()});
    };
    for (const Values& v : values_) {
        add(v, kOuter, v.outer);
        add(v, kMomentum, v.momentum);
    }
}

void OuterOptimizer::load(const HookState& state) {
    const auto find = [&](const Values& v, const char* key) {
        const auto found =
            std::find_if(state.arrays.begin(), state.arrays.end(),
                         [&](const auto& a) { return a.param == v.param && a.key == key; });
        if (found == state.arrays.end()) return static_cast<const HookState::Array*>(nullptr);
        if (found->dtype != v.dtype || found->bytes != v.outer.size())
            fail_call(DDP_ERROR_INVALID_ARGUMENT,
                      "the state is damaged (the size of an array); nothing was loaded");
        return &*found;
    };
    const auto number = state.numbers.find(kStarted);
    const bool started = number != state.numbers.end() && number->second == 1;
    std::vector<const HookState::Array*> outer, momentum;
    for (const Values& v : values_) {
        outer.push_back(started ? find(v, kOuter) : nullptr);
        momentum.push_back(started ? find(v, kMomentum) : nullptr);
        if (started && !outer.back())
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "the state has no outer parameter '",
                      table_[v.param].name, "'");
    }
    for (std::size_t i = 0; i < values_.size(); ++i) {
        Values& v = values_[i];
        if (outer[i]) std::memcpy(v.outer.data(), outer[i]->data, outer[i]->bytes);
        std::fill(v.momentum.begin(), v.momentum.end(), std::byte{0});
        if (momentum[i] && !v.momentum.empty())
            std::memcpy(v.momentum.data(), momentum[i]->data, momentum[i]->bytes);
    }
    started_ = started;
}

}  // namespace libddp
