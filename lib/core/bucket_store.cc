#include "core/bucket_store.h"

#include <cstring>
#include <map>

#include "comm/link.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"

namespace libddp {
namespace {

// The program's memory.
std::shared_ptr<std::byte> unowned(void* memory) {
    return {std::shared_ptr<void>(), static_cast<std::byte*>(memory)};
}

}  // namespace

BucketStore::BucketStore(Group& group, const ParamTable& table, const ContextStreams& streams, BucketPlan plan)
    : streams_(streams),
      link_count_(group.link_count()),
      plan_(std::move(plan)),
      plan_hash_(hash_plan(plan_)),
      locations_(table.params().size()) {
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
        const auto& bucket = plan_.buckets[b];
        // Of the link that will reduce it.
        const StreamPtr stream = streams_.stream(bucket.device);
        const auto link = group.link(b);
        if (bucket.in_place)
            memory_.push_back(unowned(table[bucket.params.front()].place));
        else
            memory_.push_back(stream ? link->allocate(bucket.bytes, stream) : link->allocate(bucket.bytes));
        for (std::size_t i = 0; i < bucket.params.size(); ++i)
            locations_[static_cast<std::size_t>(bucket.params[i])] = {
                bucket.sparse ? nullptr : memory_[b].get() + bucket.offsets[i], static_cast<std::int32_t>(b)};
    }
}

ddp_bucket BucketStore::describe(std::size_t index, const ParamTable& table) const {
    const auto& planned = plan_.buckets[index];
    ddp_bucket bucket;
    bucket.index = static_cast<std::int32_t>(index);
    bucket.dtype = planned.dtype;
    bucket.device = planned.device;
    if (auto* on_device = streams_.find(planned.device)) {
        bucket.stream = on_device->of_link(index % link_count_);
        bucket.home = on_device->stream();
    }
    bucket.buffer = memory_[index].get();
    bucket.count = planned.bytes / dtype_size(planned.dtype);
    for (auto id : planned.params) {
        const Param& p = table.params()[static_cast<std::size_t>(id)];
        bucket.tensors.push_back(
            {id, place(id), p.data, p.dtype, p.shape.data(), static_cast<std::int32_t>(p.shape.size()), p.count});
    }
    return bucket;
}

void BucketStore::copy_from(const BucketStore& other, const ParamTable& table) {
    std::map<StreamPtr, std::vector<ddp_segment>> on_devices;
    for (std::int32_t id = 0; id < table.size(); ++id) {
        const auto bytes = table[id].bytes;
        if (bytes == 0 || !place(id) || place(id) == other.place(id)) continue;
        if (const StreamPtr stream = streams_.stream(table[id].device))
            on_devices[stream].push_back({place(id), other.place(id), bytes});
        else
            std::memcpy(place(id), other.place(id), bytes);
    }
    for (const auto& [stream, segments] : on_devices) on_device::transfer(*stream, segments, DDP_U8, DDP_U8, 1);
}

}  // namespace libddp
