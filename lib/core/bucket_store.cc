#include "core/bucket_store.h"

#include <cstring>

#include "comm/link.h"
#include "device/dtype.h"

namespace libddp {

BucketStore::BucketStore(Group& group, const ParamTable& table, BucketPlan plan)
    : plan_(std::move(plan)), plan_hash_(hash_plan(plan_)), places_(table.params().size()) {
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
        const auto& bucket = plan_.buckets[b];
        // Of the link that will reduce it.
        memory_.push_back(group.link(b)->allocate(bucket.bytes));
        for (std::size_t i = 0; i < bucket.params.size(); ++i)
            places_[static_cast<std::size_t>(bucket.params[i])] = {
                bucket.sparse ? nullptr : memory_[b].get() + bucket.offsets[i], static_cast<std::int32_t>(b)};
    }
}

ddp_bucket BucketStore::describe(std::size_t index, const ParamTable& table) const {
    const auto& planned = plan_.buckets[index];
    ddp_bucket bucket;
    bucket.index = static_cast<std::int32_t>(index);
    bucket.dtype = planned.dtype;
    bucket.device = planned.device;
    bucket.buffer = memory_[index].get();
    bucket.count = planned.bytes / dtype_size(planned.dtype);
    for (auto id : planned.params) {
        const Param& p = table.params()[static_cast<std::size_t>(id)];
        bucket.tensors.push_back(
            {id, slot(id), p.data, p.shape.data(), static_cast<std::int32_t>(p.shape.size()), p.count});
    }
    return bucket;
}

void BucketStore::copy_from(const BucketStore& other, const ParamTable& table) {
    for (std::int32_t id = 0; id < table.size(); ++id)
        if (auto bytes = table[id].bytes; bytes > 0 && slot(id)) std::memcpy(slot(id), other.slot(id), bytes);
}

}  // namespace libddp
