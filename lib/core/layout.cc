#include "core/layout.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "comm/link.h"
#include "device/device.h"
#include "device/memory.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"

namespace libddp {
namespace {

// The program's memory.
std::shared_ptr<std::byte> unowned(void* memory) {
    return {std::shared_ptr<void>(), static_cast<std::byte*>(memory)};
}

BucketPlan shared_out(BucketPlan plan, const Model& model, std::int32_t world) {
    if (model.options.reducer.shard) share_out(plan, model.table, world);
    return plan;
}

}  // namespace

Layout::Layout(Group& group, const Model& model, BucketPlan plan)
    : model_(model),
      link_count_(group.link_count()),
      plan_(shared_out(std::move(plan), model, group.world())),
      plan_hash_(hash_plan(plan_)),
      shards_(model.options.reducer.shard ? Shards(plan_, model.table, group.rank(), group.world())
                                          : Shards()),
      locations_(model.table.params().size()) {
    const bool sharded = !shards_.values().empty();
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
        const auto& bucket = plan_.buckets[b];
        // Memory of the link that will reduce the bucket.
        const StreamPtr stream = model_.streams.stream(bucket.device);
        const auto link = group.link(b);
        const std::size_t bytes =
            sharded ? std::max(bucket.bytes, shards_.values()[b].bytes) : bucket.bytes;
        if (bucket.in_place)
            memory_.push_back(unowned(model_.table[bucket.params.front()].in_place.memory));
        else
            memory_.push_back(link->allocate(bytes, stream));
        for (std::size_t i = 0; i < bucket.params.size(); ++i) {
            Location& location = at(bucket.params[i]);
            location.place = bucket.sparse ? nullptr : memory_[b].get() + bucket.offsets[i];
            location.bucket = static_cast<std::int32_t>(b);
            location.owned = sharded ? 0 : model_.table[bucket.params[i]].count;
        }
    }
    for (const ShardPiece& piece : shards_.mine()) {
        at(piece.param).first_owned = piece.first;
        at(piece.param).owned = piece.count;
    }
    if (model_.options.reducer.check) place_checked_views();
}

// Gradients that would live in buckets: so what the program writes is never what is reduced, and
// can be compared with what was announced.
void Layout::place_checked_views() {
    const auto lives_here = [](const Param& param) {
        return !param.grad && !param.ignored && !param.sparse;
    };
    std::size_t total = kAlignment;  // a parameter without elements has a place, too
    for (const Param& param : model_.table.params())
        if (lives_here(param)) total += align_up(param.gradient.bytes);
    checked_memory_ = allocate_zeroed(total);
    std::byte* next = checked_memory_.get();
    for (std::int32_t id = 0; id < model_.table.size(); ++id) {
        const Param& param = model_.table[id];
        if (!lives_here(param)) continue;
        at(id).checked = next;
        next += align_up(param.gradient.bytes);
    }
}

Gradient Layout::gradient(std::int32_t param) const {
    const Param& p = model_.table[param];
    const Location& location = at(param);
    return {location.place,
            p.grad ? p.grad : location.checked,
            model_.streams.find(p.device),
            static_cast<std::size_t>(p.count),
            p.gradient.bytes,
            p.gradient.dtype,
            location.bucket,
            p.uses,
            p.sparse,
            p.factored};
}

std::byte* Layout::view(std::int32_t param) const {
    const Param& p = model_.table[param];
    // a check copies from there
    if (p.in_place.asked && p.grad) return static_cast<std::byte*>(p.grad);
    return at(param).checked ? at(param).checked : at(param).place;
}

std::vector<std::shared_ptr<const void>> Layout::view_memory() const {
    std::vector<std::shared_ptr<const void>> memory(memory_.begin(), memory_.end());
    if (checked_memory_) memory.push_back(checked_memory_);
    return memory;
}

ddp_bucket Layout::describe(std::size_t index) const {
    const auto& planned = plan_.buckets[index];
    ddp_bucket bucket;
    bucket.index = static_cast<std::int32_t>(index);
    bucket.dtype = planned.dtype;
    bucket.mean = model_.options.reducer.mean;
    bucket.device = planned.device;
    if (auto* on_device = model_.streams.find(planned.device)) {
        bucket.stream = on_device->of_link(index % link_count_);
        bucket.home = on_device->stream();
    }
    bucket.buffer = memory_[index].get();
    bucket.count = planned.bytes / dtype_size(planned.dtype);
    if (!planned.sections.empty())
        bucket.sections = std::make_shared<const std::vector<BucketSection>>(planned.sections);
    for (auto id : planned.params) {
        const Param& p = model_.table[id];
        bucket.tensors.push_back({id, at(id).place, p.data, p.dtype, p.shape.data(),
                                  static_cast<std::int32_t>(p.shape.size()), p.count, false,
                                  at(id).first_owned, at(id).owned});
    }
    return bucket;
}

void Layout::take_from(Layout& other) {
    std::map<StreamPtr, std::vector<ddp_segment>> on_devices;
    // a device may yet fail, and then the other layout stays
    const bool on_host = std::all_of(plan_.buckets.begin(), plan_.buckets.end(),
                                     [](const PlanBucket& b) { return is_cpu(b.device); });
    std::vector<std::size_t> left;
    for (const PlanBucket& bucket : other.plan_.buckets) left.push_back(bucket.params.size());
    for (const PlanBucket& bucket : plan_.buckets)
        for (const std::int32_t id : bucket.params) {
            const auto bytes = model_.table[id].gradient.bytes;
            const Location& to = at(id);
            const Location& from = other.at(id);
            const StreamPtr stream = model_.streams.stream(model_.table[id].device);
            if (to.checked && bytes > 0) std::memcpy(to.checked, from.checked, bytes);
            if (bytes > 0 && to.place && to.place != from.place) {
                if (stream)
                    on_devices[stream].push_back({to.place, from.place, bytes});
                else
                    std::memcpy(to.place, from.place, bytes);
            }
            const auto old = static_cast<std::size_t>(from.bucket);
            if (--left[old] == 0 && on_host) other.memory_[old] = nullptr;
        }
    for (const auto& [stream, segments] : on_devices)
        on_device::transfer(*stream, segments, DDP_U8, DDP_U8, 1);
}

}  // namespace libddp
