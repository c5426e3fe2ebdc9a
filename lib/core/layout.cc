#include "core/layout.h"

#include <cstring>
#include <utility>

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

Layout::Layout(Group& group, const Model& model, BucketPlan plan, Layout* before, Before buckets)
    : model_(model),
      link_count_(group.link_count()),
      plan_(shared_out(std::move(plan), model, group.world())),
      plan_hash_(hash_plan(plan_)),
      shards_(model.options.reducer.shard ? Shards(plan_, model.table, group.rank(), group.world())
                                          : Shards()),
      locations_(model.table.params().size()) {
    const bool sharded = !shards_.values().empty();
    if (before) {
        locations_ = before->locations_;  // of checked views, which no plan moves
        checked_memory_ = before->checked_memory_;
    } else if (model_.options.reducer.check) {
        place_checked_views();
    }
    try {
        for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
            const auto& bucket = plan_.buckets[b];
            std::shared_ptr<std::byte> memory;
            if (before && buckets == Before::kMayStay) memory = before->memory_of(bucket, b);
            memory_.push_back(memory ? std::move(memory) : allocate(group, b));
            left_.push_back(bucket.params.size());
            for (std::size_t i = 0; i < bucket.params.size(); ++i) {
                Location& location = at(bucket.params[i]);
                location.place = bucket.sparse ? nullptr : memory_[b].get() + bucket.offsets[i];
                location.bucket = static_cast<std::int32_t>(b);
                location.first_owned = 0;
                location.owned = sharded ? 0 : model_.table[bucket.params[i]].count;
            }
            if (before) take(b, *before);
        }
    } catch (...) {
        if (before) {
            before->intact_ = false;
            before->moved_to_.insert(before->moved_to_.end(), memory_.begin(), memory_.end());
        }
        throw;
    }
    for (const ShardPiece& piece : shards_.mine()) {
        at(piece.param).first_owned = piece.first;
        at(piece.param).owned = piece.count;
    }
}

// Memory of the link that will reduce the bucket.
std::shared_ptr<std::byte> Layout::allocate(Group& group, std::size_t bucket) const {
    const PlanBucket& planned = plan_.buckets[bucket];
    if (planned.in_place) return unowned(model_.table[planned.params.front()].in_place.memory);
    const auto& values = shards_.values();
    const std::size_t bytes =
        values.empty() ? planned.bytes : std::max(planned.bytes, values[bucket].bytes);
    return group.link(bucket)->allocate(bytes, model_.streams.stream(planned.device));
}

std::shared_ptr<std::byte> Layout::memory_of(const PlanBucket& bucket, std::size_t number) const {
    const auto old = static_cast<std::size_t>(at(bucket.params.front()).bucket);
    const PlanBucket& mine = plan_.buckets[old];
    const bool same = mine.params == bucket.params && mine.offsets == bucket.offsets;
    return same && old % link_count_ == number % link_count_ ? memory_[old] : nullptr;
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
    memory.insert(memory.end(), moved_to_.begin(), moved_to_.end());
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

// The other layout has the gradients until all of them are on their way: a device may fail.
void Layout::take(std::size_t bucket, Layout& before) {
    const PlanBucket& planned = plan_.buckets[bucket];
    std::vector<ddp_segment> segments;
    for (const std::int32_t id : planned.params) {
        std::byte* const from = before.at(id).place;
        const std::size_t bytes = model_.table[id].gradient.bytes;
        if (bytes > 0 && from != at(id).place) segments.push_back({at(id).place, from, bytes});
    }
    if (const StreamPtr stream = model_.streams.stream(planned.device))
        on_device::transfer(*stream, segments, DDP_U8, DDP_U8, 1);
    else
        for (const ddp_segment& s : segments) std::memcpy(s.dst, s.src, s.count);
    for (const std::int32_t id : planned.params) before.lose(id, at(id).place);
}

void Layout::lose(std::int32_t param, std::byte* place) {
    Location& location = at(param);
    location.place = place;
    const auto bucket = static_cast<std::size_t>(location.bucket);
    if (intact_ && --left_[bucket] == 0) memory_[bucket] = nullptr;
}

}  // namespace libddp
