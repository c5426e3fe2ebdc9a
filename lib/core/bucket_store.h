// The buckets of one plan in memory: where each gradient lives.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "core/device_streams.h"
#include "core/param_table.h"
#include "core/plan.h"
#include "hooks/bucket.h"

namespace libddp {

class BucketStore {
public:
    // Allocates zeroed memory for the plan, without what is reduced in place. Throws OUT_OF_MEMORY.
    BucketStore(Group& group, const ParamTable& table, const ContextStreams& streams, BucketPlan plan);

    const BucketPlan& plan() const { return plan_; }
    std::uint64_t plan_hash() const { return plan_hash_; }
    std::size_t size() const { return plan_.buckets.size(); }
    // Where the gradient of a parameter lives (null: sparse or ignored), and in which bucket (-1: ignored).
    std::byte* place(std::int32_t param) const { return locations_[static_cast<std::size_t>(param)].memory; }
    std::int32_t bucket_of(std::int32_t param) const { return locations_[static_cast<std::size_t>(param)].bucket; }
    // For operations, which may outlast the context and must not outlast the memory.
    std::shared_ptr<const void> memory(std::size_t bucket) const { return memory_[bucket]; }
    std::vector<std::shared_ptr<const void>> all_memory() const { return {memory_.begin(), memory_.end()}; }

    // What a hook is shown of a bucket: everything that does not change from step to step.
    ddp_bucket describe(std::size_t bucket, const ParamTable& table) const;

    // Moves every gradient's bytes from another layout of the same table.
    void copy_from(const BucketStore& other, const ParamTable& table);

private:
    struct Location {
        std::byte* memory = nullptr;
        std::int32_t bucket = -1;
    };

    const ContextStreams& streams_;
    std::size_t link_count_;
    BucketPlan plan_;
    std::uint64_t plan_hash_;
    std::vector<std::shared_ptr<std::byte>> memory_;
    std::vector<Location> locations_;
};

}  // namespace libddp
