// The buckets of one plan in memory: the place of each gradient. A layout never changes; a rebuild
// replaces the whole, and takes over the buckets that stay as they are.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/shards.h"
#include "hooks/bucket.h"

namespace libddp {

// The place of a gradient: in its bucket, and with the program.
struct Gradient {
    std::byte* place = nullptr;  // in the bucket; null: sparse
    // null: view. With a check never null: then it is memory of the layout's own
    void* grad = nullptr;
    DeviceStreams* streams = nullptr;  // null: the CPU
    std::size_t count = 0;
    std::size_t bytes = 0;
    ddp_dtype dtype = DDP_F32;
    std::int32_t bucket = -1;
    std::int32_t uses = 1;  // announcements that complete the gradient
    bool sparse = false, factored = false;
};

class Layout {
public:
    // Buckets of a layout before, of the same model.
    enum class Before : std::uint8_t {
        kMayStay,   // in the same group: nothing writes into them
        kMustMove,  // others may still write into them, or the group does not reach them
    };

    // Allocates zeroed memory for the plan, without what is reduced in place. Throws OUT_OF_MEMORY.
    Layout(Group& group, const Model& model, BucketPlan plan)
        : Layout(group, model, std::move(plan), nullptr, {}) {}
    // The same, and every gradient moves here from the layout before. A bucket with the same
    // gradients at the same offsets stays where it is, if it may. Memory is given back as soon as
    // all of its gradients have moved. Where this throws, the other layout still has each gradient,
    // but some outside of their buckets: no bucket of it can be reduced.
    Layout(Group& group, const Model& model, BucketPlan plan, Layout& before, Before buckets)
        : Layout(group, model, std::move(plan), &before, buckets) {}

    const BucketPlan& plan() const { return plan_; }
    const Shards& shards() const { return shards_; }
    // False if a move to another layout has failed.
    bool intact() const { return intact_; }
    std::uint64_t plan_hash() const { return plan_hash_; }
    std::size_t size() const { return plan_.buckets.size(); }
    Gradient gradient(std::int32_t param) const;
    // The memory in which the program finds the gradient of a parameter that has a place in a
    // bucket.
    std::byte* view(std::int32_t param) const;
    // The memory of all views: it lasts as long as anybody holds it.
    std::vector<std::shared_ptr<const void>> view_memory() const;
    // For operations, which may outlast the context and must not outlast the memory.
    std::shared_ptr<const void> memory(std::size_t bucket) const { return memory_[bucket]; }

    // The bucket as a hook sees it, without all that changes from step to step.
    ddp_bucket describe(std::size_t bucket) const;

private:
    struct Location {
        std::byte* place = nullptr;    // in its bucket; null: sparse or ignored
        std::byte* checked = nullptr;  // in memory that a check compares; null: nothing is checked
        std::int32_t bucket = -1;      // -1: ignored
        // the elements whose result this rank gets
        std::int64_t first_owned = 0, owned = 0;
    };

    Layout(Group& group, const Model& model, BucketPlan plan, Layout* before, Before buckets);

    Location& at(std::int32_t param) { return locations_[static_cast<std::size_t>(param)]; }
    const Location& at(std::int32_t param) const {
        return locations_[static_cast<std::size_t>(param)];
    }
    void place_checked_views();
    std::shared_ptr<std::byte> allocate(Group& group, std::size_t bucket) const;
    // The memory of a bucket that the plan has as this number. Null: there is none, or the number's link
    // has not allocated it.
    std::shared_ptr<std::byte> memory_of(const PlanBucket& bucket, std::size_t number) const;
    // The gradients of a bucket move here.
    void take(std::size_t bucket, Layout& before);
    // A gradient has left this layout, and lies there.
    void lose(std::int32_t param, std::byte* place);

    const Model& model_;
    std::size_t link_count_;
    const BucketPlan plan_;
    const std::uint64_t plan_hash_;
    const Shards shards_;
    std::vector<std::shared_ptr<std::byte>> memory_;
    // after a move that has failed: where gradients lie that have moved
    std::vector<std::shared_ptr<std::byte>> moved_to_;
    std::vector<std::size_t> left_;  // gradients in each bucket that have not moved
    bool intact_ = true;
    std::shared_ptr<std::byte> checked_memory_;
    std::vector<Location> locations_;
};

}  // namespace libddp
