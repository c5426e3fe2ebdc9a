#include "outer/outer_optimizer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/pieces.h"
#include "device/host_copy.h"
#include "device/memory.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "outer/fragments.h"
#include "util/error.h"
#include "util/hash.h"

namespace libddp {
namespace {

constexpr const char* kOuter = "outer";
constexpr const char* kMomentum = "momentum";
constexpr const char* kStarted = "started";
constexpr const char* kTaken = "outer_steps";
// Numbers that are f32 or f64 at one time: few enough for the L1 cache.
constexpr std::size_t kBlock = 1024;

void require_fragments(std::int32_t fragments, std::size_t params) {
    if (static_cast<std::size_t>(fragments) > std::max<std::size_t>(params, 1))
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "options->fragments is ", fragments,
                  ", and the model has ", params, " parameters to average; each fragment has one");
}

}  // namespace

OuterOptimizer::OuterOptimizer(const Context& context, const ddp_outer_options& options)
    : context_(context), table_(context.model().table), options_(options) {
    for (std::int32_t i = 0; i < table_.size(); ++i) {
        const Param& p = table_[i];
        if (!has_average(p)) continue;
        const ddp_dtype part = dtype_of_parts(p.dtype), dtype = compute_dtype(part);
        const std::size_t count = p.bytes / dtype_size(part);
        values_.push_back(
            {i, dtype, count, 0, std::vector<std::byte>(count * dtype_size(dtype)), {}});
    }
    cut_fragments();
    make_momentum();
}

void OuterOptimizer::set_options(const ddp_outer_options& options) {
    const bool cut = options.fragments != options_.fragments;
    require_fragments(options.fragments, values_.size());
    options_ = options;
    if (cut) cut_fragments();
    make_momentum();
}

void OuterOptimizer::cut_fragments() {
    require_fragments(options_.fragments, values_.size());
    std::vector<std::size_t> bytes;
    for (const Values& v : values_) bytes.push_back(table_[v.param].bytes);
    const auto fragment_of = cut_into_fragments(bytes, options_.fragments);
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i].fragment = fragment_of[i];
}

void OuterOptimizer::set_fragments(const std::vector<std::int32_t>& fragment_of) {
    for (Values& v : values_) v.fragment = fragment_of[static_cast<std::size_t>(v.param)];
}

std::vector<std::int32_t> OuterOptimizer::params(std::int32_t fragment) const {
    std::vector<std::int32_t> params;
    for (const Values& v : values_)
        if (v.fragment == fragment) params.push_back(v.param);
    return params;
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
    return hash.add(static_cast<std::uint64_t>(steps_)).value();
}

std::uint32_t OuterOptimizer::fragments_hash() const {
    Hash hash;
    for (const Values& v : values_) hash.add(static_cast<std::uint64_t>(v.fragment));
    hash.add(static_cast<std::uint64_t>(options_.delay))
        .add(std::bit_cast<std::uint64_t>(options_.alpha))
        .add(static_cast<std::uint64_t>(options_.sent_dtype));
    return static_cast<std::uint32_t>(hash.value());
}

void OuterOptimizer::start() {
    const StreamScope order(context_.model().streams);
    HostCopies copies(timeout_ms());
    std::vector<std::byte> fetched;
    for (Values& v : values_) {
        const Param& p = table_[v.param];
        cpu::convert(v.outer.data(), v.dtype, fetch(p, copies, fetched), dtype_of_parts(p.dtype),
                     v.count);
    }
    started_ = true;
    steps_ = 0;
}

// To memory of the host: the parameter itself, or a copy of what a device has.
std::byte* OuterOptimizer::fetch(const Param& p, HostCopies& copies,
                                 std::vector<std::byte>& fetched) const {
    const StreamPtr stream = context_.model().streams.stream(p.device);
    if (!stream) return static_cast<std::byte*>(p.data);
    fetched.resize(p.bytes);
    copies.out(*stream, fetched.data(), p.data, p.bytes);
    return fetched.data();
}

FragmentSum OuterOptimizer::collect(std::int32_t fragment, std::int64_t due) const {
    const StreamScope order(context_.model().streams);
    const ddp_dtype sent = options_.sent_dtype;
    std::vector<FragmentSum::Part> parts;
    for (const SumBatch& batch : batches_of(context_, params(fragment))) {
        FragmentSum::Part part{number_dtype(sent, batch.dtype), nullptr, nullptr, {}};
        for (const std::int32_t id : batch.params) {
            const Param& p = table_[id];
            const std::size_t bytes =
                sent ? p.bytes / dtype_size(dtype_of_parts(p.dtype)) * dtype_size(part.dtype)
                     : p.bytes;
            part.numbers.push_back({id, part.bytes, bytes});
            part.bytes += bytes;
        }
        if (batch.stream) part.stream = on_device::make_stream(batch.stream->device());
        part.memory = part.stream ? part.stream->allocate(part.bytes) : allocate_zeroed(part.bytes);
        sent ? copy_gradients(part) : copy_values(part, batch.stream);
        parts.push_back(std::move(part));
    }
    return {{fragment, due, sent}, std::move(parts)};
}

void OuterOptimizer::copy_values(const FragmentSum::Part& part, const StreamPtr& stream) const {
    std::vector<Piece> pieces;
    for (const auto& numbers : part.numbers)
        pieces.push_back({static_cast<std::byte*>(table_[numbers.param].data), numbers.bytes});
    if (stream) part.stream->wait(*stream->record());
    gather_pieces(part.memory.get(), pieces, part.stream);
    if (stream) stream->wait(*part.stream->record());
}

void OuterOptimizer::copy_gradients(const FragmentSum::Part& part) const {
    HostCopies copies(timeout_ms());
    std::vector<std::byte> fetched, sent;
    double block[kBlock];
    for (const auto& numbers : part.numbers) {
        const Values& v = *std::find_if(values_.begin(), values_.end(), [&](const Values& values) {
            return values.param == numbers.param;
        });
        const ddp_dtype stored = dtype_of_parts(table_[v.param].dtype);
        const std::byte* const local = fetch(table_[v.param], copies, fetched);
        sent.resize(numbers.bytes);
        for (std::size_t begin = 0; begin < v.count; begin += kBlock) {
            const std::size_t n = std::min(kBlock, v.count - begin);
            cpu::convert(block, v.dtype, local + begin * dtype_size(stored), stored, n);
            cpu::subtract_from(block, v.outer.data() + begin * dtype_size(v.dtype), n, v.dtype);
            cpu::convert(sent.data() + begin * dtype_size(part.dtype), part.dtype, block, v.dtype,
                         n);
        }
        std::byte* const there = part.memory.get() + numbers.offset;
        if (part.stream)
            copies.in(*part.stream, there, sent.data(), sent.size());
        else
            std::memcpy(there, sent.data(), sent.size());
    }
}

void OuterOptimizer::step(std::int32_t fragment) {
    step_with(fragment, [](const Values&, HostCopies&, std::byte* local) { return local; });
}

void OuterOptimizer::step(const FragmentSum& sum) {
    std::vector<std::byte> fetched;
    step_with(
        sum.facts().fragment,
        [&](const Values& v, HostCopies& copies, std::byte*) {
            return sum.mean(v.param, copies, fetched);
        },
        sum.facts().sent_dtype);
}

template <class Mean>
void OuterOptimizer::step_with(std::int32_t fragment, const Mean& mean, ddp_dtype sent) {
    const ContextStreams& streams = context_.model().streams;
    const StreamScope order(streams);
    HostCopies copies(timeout_ms());
    std::vector<std::byte> fetched;
    for (Values& v : values_) {
        if (v.fragment != fragment) continue;
        const Param& p = table_[v.param];
        std::byte* const local = fetch(p, copies, fetched);
        update(v, sent, mean(v, copies, local), local);
        if (const StreamPtr stream = streams.stream(p.device))
            copies.in(*stream, p.data, local, p.bytes);
    }
    ++steps_;
}

// mean: of values, which may be `local`, or of outer gradients that travelled as `sent`.
void OuterOptimizer::update(Values& v, ddp_dtype sent, const std::byte* mean,
                            std::byte* local) const {
    const ddp_dtype stored = dtype_of_parts(table_[v.param].dtype),
                    travelled = number_dtype(sent, stored);
    const std::size_t size = dtype_size(v.dtype);
    const cpu::OuterStep step{options_.kind == DDP_OUTER_NESTEROV, options_.learning_rate,
                              options_.momentum, inner_rate()};
    double numbers[kBlock], own[kBlock];
    for (std::size_t begin = 0; begin < v.count; begin += kBlock) {
        const std::size_t n = std::min(kBlock, v.count - begin);
        std::byte* const there = local + begin * dtype_size(stored);
        std::byte* const outer = v.outer.data() + begin * size;
        cpu::convert(numbers, v.dtype, mean + begin * dtype_size(travelled), travelled, n);
        if (sent) cpu::subtract_from(numbers, outer, n, v.dtype);
        cpu::outer_step(numbers, outer,
                        v.momentum.empty() ? nullptr : v.momentum.data() + begin * size, n, v.dtype,
                        step);
        if (options_.alpha > 0) {
            cpu::convert(own, v.dtype, there, stored, n);
            cpu::mix(own, numbers, n, v.dtype, options_.alpha);
        }
        cpu::convert(there, stored, options_.alpha > 0 ? own : numbers, v.dtype, n);
    }
}

void OuterOptimizer::restore() const {
    if (!started_) return;
    const ContextStreams& streams = context_.model().streams;
    const StreamScope order(streams);
    HostCopies copies(timeout_ms());
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
    state.numbers[kTaken] = steps_;
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
    const auto taken = state.numbers.find(kTaken);
    steps_ = taken == state.numbers.end() ? 0 : taken->second;
}

}  // namespace libddp
