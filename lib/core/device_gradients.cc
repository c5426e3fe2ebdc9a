#include "core/device_gradients.h"

#include <algorithm>
#include <utility>

#include "kernels/dtype.h"
#include "kernels/on_device.h"

namespace libddp {

void DeviceGradients::reset_layout(const BucketStore& store) {
    if (streams_.empty()) return;
    buckets_.clear();
    for (const PlanBucket& planned : store.plan().buckets) {
        auto& bucket = buckets_.emplace_back();
        if (is_cpu(planned.device)) continue;
        bucket = std::make_unique<Bucket>();
        bucket->device_streams = streams_.find(planned.device);
        bucket->params = planned.params;
    }
    fills_ = std::vector<Fill>(table_.params().size());
}

void DeviceGradients::arm(const Participation& participation) {
    for (auto& bucket : buckets_) {
        if (!bucket) continue;
        std::int32_t expected = 0;
        for (const std::int32_t param : bucket->params) {
            if (participation.role(param) == Role::kExpected) ++expected;
            fills_[static_cast<std::size_t>(param)] = Fill::kKeptZeros;  // what is absent says nothing more
        }
        bucket->missing.store(expected, std::memory_order_relaxed);
        bucket->streams.clear();
        bucket->complete.clear();
    }
}

void DeviceGradients::come(std::int32_t index, void* stream) {
    Bucket& b = bucket(index);
    if (names_thread_stream(stream)) {
        EventPtr here = b.device_streams->stream()->record(stream);
        const std::lock_guard lock(b.mutex);
        b.complete.push_back(std::move(here));
        return;
    }
    const std::lock_guard lock(b.mutex);
    if (std::find(b.streams.begin(), b.streams.end(), stream) == b.streams.end()) b.streams.push_back(stream);
}

// Events only now, and one for each stream: it stands for all gradients that came on it. But a stream that only the thread knows has
// its events already.
void DeviceGradients::decide(std::int32_t index, std::int32_t param, Fill fill) {
    Bucket& b = bucket(index);
    fills_[static_cast<std::size_t>(param)] = fill;
    if (b.missing.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const std::lock_guard lock(b.mutex);
    for (void* stream : b.streams) b.complete.push_back(b.device_streams->stream()->record(stream));
}

std::uint64_t DeviceGradients::pack(const ddp_bucket& described, const Hook::Target& target, double scale) {
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
        void* dst = static_cast<std::byte*>(target.buffer) + described.first_element(tensor) * dtype_size(target.dtype);
        if (fill_of(tensor) != Fill::kGradient || scale == 0) {  // not 0 * infinity
            segments.push_back({dst, nullptr, count});
        } else if (!is_view(tensor)) {
            segments.push_back({dst, table_[tensor.param].grad, count});
            copied += table_[tensor.param].bytes;
        } else if (elsewhere || scale != 1) {
            segments.push_back({dst, tensor.gradient, count});
        }
    }
    on_device::transfer(stream, segments, described.dtype, target.dtype, scale == 0 ? 1 : scale);
    described.stream->wait(*stream.record());
    return copied;
}

void DeviceGradients::keep_views(const ddp_bucket& described) {
    const StreamPtr& stream = bucket(described.index).device_streams->stream();
    std::vector<ddp_segment> segments;
    for (const BucketTensor& tensor : described.tensors) {
        if (tensor.count == 0 || fill_of(tensor) != Fill::kKeptZeros || !is_view(tensor)) continue;
        auto& kept = kept_[tensor.param];
        kept = stream->allocate(table_[tensor.param].bytes);
        segments.push_back({kept.get(), tensor.gradient, static_cast<std::size_t>(tensor.count)});
    }
    on_device::transfer(*stream, segments, described.dtype, described.dtype, 1);
}

bool DeviceGradients::take_result(const ddp_bucket& described, const BucketTensor& tensor, void* target) {
    if (!target) target = tensor.gradient;
    const auto count = static_cast<std::size_t>(tensor.count);
    if (!described.result) {
        if (target == tensor.gradient) return false;
        add_result(described, described.dtype, {target, tensor.gradient, count});
        return true;
    }
    const auto* source = static_cast<const std::byte*>(described.result) +
                         described.first_element(tensor) * dtype_size(described.result_dtype);
    add_result(described, described.result_dtype, {target, source, count});
    return true;
}

void DeviceGradients::give_back(const ddp_bucket& described, const BucketTensor& tensor) {
    const auto kept = kept_.find(tensor.param);
    if (kept != kept_.end())
        add_result(described, described.dtype,
                   {tensor.gradient, kept->second.get(), static_cast<std::size_t>(tensor.count)});
}

void DeviceGradients::add_result(const ddp_bucket& described, ddp_dtype from, const ddp_segment& segment) {
    if (segment.count > 0) results_[{bucket(described.index).device_streams, from, described.dtype}].push_back(segment);
}

void DeviceGradients::deliver(const ddp_bucket& described) {
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

void DeviceGradients::forget_step() {
    kept_.clear();
    results_.clear();
}

}  // namespace libddp
