#include "core/gradients.h"

#include <algorithm>
#include <utility>

#include "comm/link.h"
#include "comm/verdict.h"
#include "device/device.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"

namespace libddp {
namespace {

// Where the program finds it.
void* home(const Gradient& gradient) {
    return gradient.grad ? gradient.grad : gradient.place;
}

}  // namespace

void HostGradients::copy_given(const Gradient& gradient, const void* given, bool add, void*) {
    void* const to = home(gradient);
    if (gradient.bytes == 0 || given == to) return;
    if (add) {
        const void* const terms[] = {to, given};
        cpu::reduce(to, terms, 2, gradient.count, gradient.dtype, DDP_SUM, 1);
    } else {
        std::memcpy(to, given, gradient.bytes);
    }
    count_copied(gradient);
}

void HostGradients::copy_out(const Gradient& gradient, void* memory, void*) {
    if (gradient.bytes > 0) std::memcpy(memory, home(gradient), gradient.bytes);
    count_copied(gradient);
}

void HostGradients::fill_with_zeros(std::int32_t param, const Gradient& gradient, bool keep) {
    if (keep) this->keep(param, gradient);
    clear(gradient);
}

void HostGradients::keep(std::int32_t param, const Gradient& gradient) {
    if (gradient.grad) return;
    std::vector<std::byte> copy(gradient.place, gradient.place + gradient.bytes);
    const Lock lock(mutex_);
    kept_.insert_or_assign(param, std::move(copy));
}

void HostGradients::convert_result(const ddp_bucket& bucket, const BucketTensor& tensor,
                                   void* target) {
    const auto count = static_cast<std::size_t>(tensor.owned);
    const std::byte* const source = bucket.owned_result(tensor);
    target = bucket.first_owned(target, tensor);
    if (bucket.result_dtype == bucket.dtype)
        cpu::scale_copy(target, source, count, bucket.dtype, 1);
    else
        cpu::convert(target, bucket.dtype, source, bucket.result_dtype, count);
}

void HostGradients::give_back(const ddp_bucket&, const BucketTensor& tensor,
                              const Gradient& gradient) {
    if (gradient.grad) return;
    const Lock lock(mutex_);
    const auto found = kept_.find(tensor.param);
    if (found != kept_.end() && !found->second.empty())
        std::memcpy(gradient.place, found->second.data(), found->second.size());
}

void DeviceGradients::reset_layout(const Layout& layout) {
    if (streams_.empty()) return;
    buckets_.clear();
    for (const PlanBucket& planned : layout.plan().buckets) {
        auto& bucket = buckets_.emplace_back();
        if (is_cpu(planned.device)) continue;
        bucket = std::make_unique<Bucket>();
        bucket->device_streams = streams_.find(planned.device);
        bucket->params = planned.params;
    }
    fills_ = std::vector<Fill>(table_.params().size());
}

void DeviceGradients::begin_step(const Participation& participation) {
    {
        const Lock lock(mutex_);
        ordered_.clear();
    }
    for (auto& bucket : buckets_) {
        if (!bucket) continue;
        std::int32_t expected = 0;
        for (const std::int32_t param : bucket->params) {
            if (participation.role(param) == Role::kExpected) ++expected;
            // what is absent says nothing more
            fills_[static_cast<std::size_t>(param)] = Fill::kKeptZeros;
        }
        bucket->missing.store(expected, std::memory_order_relaxed);
        const Lock lock(bucket->mutex);
        bucket->streams.clear();
        bucket->complete.clear();
    }
}

// The context's stream has all that was enqueued in earlier steps. Their gradients may be on another
// stream of the program's than this one.
void DeviceGradients::copy_given(const Gradient& gradient, const void* given, bool add,
                                 void* stream) {
    void* const to = home(gradient);
    if (gradient.bytes == 0 || given == to) return;
    const DeviceStreams& streams = *gradient.streams;
    {
        const Lock lock(mutex_);
        const ProgramStream ours{&streams, stream};
        if (names_thread_stream(stream) ||
            std::find(ordered_.begin(), ordered_.end(), ours) == ordered_.end()) {
            streams.stream()->lead(stream);
            ordered_.push_back(ours);
        }
    }
    on_device::copy(streams.device(), stream, to, given, gradient.count, gradient.dtype, add);
    copied_bytes_.fetch_add(gradient.bytes, std::memory_order_relaxed);
}

void DeviceGradients::copy_out(const Gradient& gradient, void* memory, void* stream) {
    const DeviceStreams& streams = *gradient.streams;
    streams.stream()->refuse_capture(stream);
    streams.refuse_own_capture();
    if (gradient.bytes == 0) return;
    streams.stream()->lead(stream);
    on_device::copy(streams.device(), stream, memory, home(gradient), gradient.count,
                    gradient.dtype, false);
    streams.stream()->follow(stream);
    copied_bytes_.fetch_add(gradient.bytes, std::memory_order_relaxed);
}

void DeviceGradients::come(const Gradient& gradient, void* stream, bool later) {
    if (later) return gradient.streams->note(stream);
    Bucket& b = bucket(gradient.bucket);
    if (names_thread_stream(stream)) {
        EventPtr here = b.device_streams->stream()->record(stream);
        const Lock lock(b.mutex);
        b.complete.push_back(std::move(here));
        return;
    }
    const Lock lock(b.mutex);
    if (std::find(b.streams.begin(), b.streams.end(), stream) == b.streams.end())
        b.streams.push_back(stream);
}

// Events only now, and one for each stream: it stands for all gradients that came on it. But a
// stream that only the thread knows has its events already.
void DeviceGradients::decide(std::int32_t param, const Gradient& gradient, Fill fill) {
    Bucket& b = bucket(gradient.bucket);
    fills_[static_cast<std::size_t>(param)] = fill;
    // The last one takes over the fills of the others.
    if (b.missing.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const Lock lock(b.mutex);
    for (void* stream : b.streams) b.complete.push_back(b.device_streams->stream()->record(stream));
}

// No announcement says that the program has written it: what is on the caller's stream now comes
// first.
void DeviceGradients::fill_absent(std::int32_t param, const Gradient& gradient, bool counts,
                                  double) {
    if (!counts) return;
    fills_[static_cast<std::size_t>(param)] = Fill::kUnused;
    gradient.streams->follow_caller();
}

void DeviceGradients::pack(const ddp_bucket& described, const Hook::Target& target, double scale) {
    Bucket& b = bucket(described.index);
    const DeviceStream& stream = *b.device_streams->stream();
    for (const EventPtr& event : b.take_complete()) stream.wait(*event);
    const bool elsewhere = target.buffer != described.buffer;
    if (!elsewhere) keep_views(described);
    std::uint64_t copied = 0;
    std::vector<ddp_segment> segments;
    for (const BucketTensor& tensor : described.tensors) {
        const auto count = static_cast<std::size_t>(tensor.count);
        if (count == 0) continue;
        void* dst = static_cast<std::byte*>(target.buffer) +
                    described.first_element(tensor) * dtype_size(target.dtype);
        const Fill fill = fill_of(tensor);
        if ((fill != Fill::kGradient && fill != Fill::kUnused) || scale == 0) {  // not 0 * infinity
            segments.push_back({dst, nullptr, count});
        } else if (!is_view(tensor)) {
            segments.push_back({dst, table_[tensor.param].grad, count});
            copied += table_[tensor.param].gradient.bytes;
        } else if (elsewhere || scale != 1) {
            segments.push_back({dst, tensor.gradient, count});
        }
    }
    on_device::transfer(stream, segments, described.dtype, target.dtype, scale == 0 ? 1 : scale);
    described.stream->wait(*stream.record());
    copied_bytes_.fetch_add(copied, std::memory_order_relaxed);
}

void DeviceGradients::keep_views(const ddp_bucket& described) {
    const StreamPtr& stream = bucket(described.index).device_streams->stream();
    std::vector<ddp_segment> segments;
    for (const BucketTensor& tensor : described.tensors) {
        const Fill fill = fill_of(tensor);
        if (tensor.count == 0 || (fill != Fill::kKeptZeros && fill != Fill::kUnused) ||
            !is_view(tensor))
            continue;
        auto& kept = kept_[tensor.param];
        kept = stream->allocate(table_[tensor.param].gradient.bytes);
        segments.push_back({kept.get(), tensor.gradient, static_cast<std::size_t>(tensor.count)});
    }
    on_device::transfer(*stream, segments, described.dtype, described.dtype, 1);
}

void DeviceGradients::take_result(const ddp_bucket& described, const BucketTensor& tensor,
                                  const Gradient& gradient) {
    void* const target = gradient.grad ? gradient.grad : tensor.gradient;
    std::byte* const to = described.first_owned(target, tensor);
    const auto count = static_cast<std::size_t>(tensor.owned);
    if (described.result) {
        add_result(described, described.result_dtype, {to, described.owned_result(tensor), count});
    } else if (target != tensor.gradient) {
        add_result(described, described.dtype,
                   {to, described.first_owned(tensor.gradient, tensor), count});
    } else {
        return;  // it is there
    }
    copied_bytes_.fetch_add(gradient.bytes, std::memory_order_relaxed);
}

void DeviceGradients::give_back(const ddp_bucket& described, const BucketTensor& tensor,
                                const Gradient&) {
    const auto kept = kept_.find(tensor.param);
    if (kept != kept_.end())
        add_result(described, described.dtype,
                   {tensor.gradient, kept->second.get(), static_cast<std::size_t>(tensor.count)});
}

void DeviceGradients::clear_home(const ddp_bucket& described, const Gradient& gradient) {
    add_result(described, described.dtype, {home(gradient), nullptr, gradient.count});
}

void DeviceGradients::add_result(const ddp_bucket& described, ddp_dtype from,
                                 const ddp_segment& segment) {
    if (segment.count > 0)
        results_[{bucket(described.index).device_streams, from, described.dtype}].push_back(
            segment);
}

void DeviceGradients::deliver(const ddp_bucket& described) {
    if (!described.done) return;  // no rank uses the bucket
    bucket(described.index).device_streams->stream()->wait(*described.done);
    deliver();
}

void DeviceGradients::deliver() {
    for (const auto& [route, segments] : results_) {
        const auto& [device_streams, from, to] = route;
        on_device::transfer(*device_streams->stream(), segments, from, to, 1);
    }
    results_.clear();
}

void DeviceGradients::finish(Group& group, std::int64_t step, bool enqueue) {
    deliver();
    if (enqueue) return streams_.leave();
    try {
        streams_.wait(group.timeout_ms(), [&group] { group.check_in_wait("a device"); });
        // Operations that are aborted end as well.
        for (std::size_t i = 0; i < group.link_count() && !streams_.empty(); ++i)
            group.link(i)->devices().check(step);
    } catch (const Error& error) {
        ErrorInfo info = on_rank(group.rank(), error.info());
        info.step = step;
        throw Error(group.break_everywhere(info));
    }
}

void DeviceGradients::forget_step() {
    kept_.clear();
    results_.clear();
    streams_.forget_noted();
}

Gradients::Gradients(const Model& model)
    : model_(model),
      states_(model.table.params().size()),
      on_devices_(model.table, model.streams),
      rows_(model.table),
      factors_(model.table) {
    rows_.prepare();
    factors_.prepare();
}

void Gradients::require_copyable(std::int32_t param, const char* name, const void* memory,
                                 bool apart, const char* advice) const {
    const ParamState& gradient = (*this)[param];
    if (gradient.bytes == 0) return;
    const std::string what = str("'", model_.table[param].name, "'");
    const auto refuse = [param, name](const std::string& why) {
        throw CallError({DDP_ERROR_INVALID_ARGUMENT, str(name, why), -1, param});
    };
    if (!memory)
        refuse(str(" is NULL, but ", what, " has ", gradient.count,
                   gradient.count == 1 ? " element" : " elements"));
    const ddp_device here = gradient.streams ? gradient.streams->device() : ddp_device{};
    if (const ddp_device device = device_of(memory); !same_device(device, here))
        refuse(str(" is memory of ", is_cpu(device) ? "the CPU" : device_name(device), ", but ",
                   what, " is on ", is_cpu(here) ? "the CPU" : device_name(here)));
    const auto from = reinterpret_cast<std::uintptr_t>(memory);
    const auto to = reinterpret_cast<std::uintptr_t>(home(gradient));
    if (from < to + gradient.bytes && to < from + gradient.bytes && (apart || from != to))
        refuse(str(" overlaps the place of the gradient of ", what, advice));
}

void Gradients::copy_out(std::int32_t param, void* memory, void* stream) {
    const ParamState& s = (*this)[param];
    require_copyable(param, "memory", memory, true);
    at(s, [&](auto& side) { side.copy_out(s, memory, stream); });
}

void Gradients::reset_layout(const Layout& layout) {
    for (std::int32_t id = 0; id < model_.table.size(); ++id)
        static_cast<Gradient&>((*this)[id]) = layout.gradient(id);
    on_devices_.reset_layout(layout);
}

void Gradients::begin_step(const Participation& participation) {
    for (std::int32_t id = 0; id < model_.table.size(); ++id) {
        renew((*this)[id].now);
        (*this)[id].now.role = participation.role(id);
    }
    on_devices_.begin_step(participation);
}

void Gradients::forget_step() {
    on_host_.forget_step();
    on_devices_.forget_step();
}

void Gradients::forget_window() {
    for (std::int32_t id = 0; id < model_.table.size(); ++id) {
        (*this)[id].waits_for_sync.store(false, std::memory_order_relaxed);
        forget_given(id);
    }
}

bool Gradients::any_waits() const {
    return std::any_of(states_.begin(), states_.end(), [](const ParamState& s) {
        return s.waits_for_sync.load(std::memory_order_relaxed);
    });
}

void Gradients::forget_given(std::int32_t param) {
    if ((*this)[param].sparse) rows_.discard(param);
    if ((*this)[param].factored) factors_.discard(param);
}

void Gradients::complete(const ddp_bucket& bucket, const Hook::Target& target, const Step& step) {
    at(bucket, [&](auto& side) {
        for (const auto& tensor : bucket.tensors) {
            const ParamState& s = (*this)[tensor.param];
            if (s.now.role == Role::kExpected || s.sparse) continue;
            const bool counts = s.now.role == Role::kAbsentHere && counts_unused(s, step);
            side.fill_absent(tensor.param, s, counts, scale(s, step));
        }
        side.pack(bucket, target, is_floating(bucket.dtype) ? step.begin.factor : 1);
    });
}

WorkPtr Gradients::reduce_alone(Group& group, std::int32_t param, const Step& step,
                                const OpTag& tag) {
    const ParamState& s = (*this)[param];
    const bool mean = model_.options.reducer.mean;
    if (s.sparse) return rows_.launch(group, param, scale(s, step), mean, tag);
    return factors_.launch(group, param, s.place, scale(s, step), mean, tag);
}

std::uint64_t Gradients::collect(std::int32_t param) {
    return (*this)[param].sparse ? rows_.collect(param) : factors_.collect(param);
}

}  // namespace libddp
