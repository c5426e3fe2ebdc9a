#include "core/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "core/hash.h"
#include "device/memory.h"

namespace libddp {
namespace {

using Key = std::tuple<ddp_dtype, ddp_device_kind, std::int32_t>;

// A bucket that is still being filled, and what orders it among the others.
struct Open {
    PlanBucket bucket;
    std::size_t content = 0;  // bytes of gradients, without gaps: what caps count
    std::size_t last = 0;     // position in the order of its last gradient
};

void append(Open& open, std::int32_t param, const PlanParam& p, std::size_t position) {
    open.bucket.params.push_back(param);
    open.bucket.offsets.push_back(open.bucket.bytes);
    open.bucket.bytes += align_up(p.bytes);
    open.content += p.bytes;
    open.last = position;
}

}  // namespace

bool BucketPlan::operator==(const BucketPlan& other) const {
    return std::equal(
        buckets.begin(), buckets.end(), other.buckets.begin(), other.buckets.end(),
        [](const PlanBucket& a, const PlanBucket& b) { return a.params == b.params && a.offsets == b.offsets; });
}

std::vector<std::int32_t> reverse_order(std::size_t count) {
    std::vector<std::int32_t> order(count);
    std::iota(order.rbegin(), order.rend(), 0);
    return order;
}

BucketPlan make_plan(const std::vector<PlanParam>& params, const std::vector<std::int32_t>& order,
                     const std::vector<std::size_t>& caps) {
    struct Lane {
        Open open;
        std::size_t closed = 0;
    };
    std::map<Key, Lane> lanes;
    std::vector<Open> finished;
    for (std::size_t position = 0; position < order.size(); ++position) {
        const PlanParam& p = params[static_cast<std::size_t>(order[position])];
        Lane& lane = lanes[{p.dtype, p.device.kind, p.device.index}];
        lane.open.bucket.dtype = p.dtype;
        lane.open.bucket.device = p.device;
        append(lane.open, order[position], p, position);
        if (lane.open.content >= caps[std::min(lane.closed, caps.size() - 1)]) {
            finished.push_back(std::move(lane.open));
            lane.open = {};
            ++lane.closed;
        }
    }
    for (auto& [_, lane] : lanes)
        if (!lane.open.bucket.params.empty()) finished.push_back(std::move(lane.open));

    std::sort(finished.begin(), finished.end(), [](const Open& a, const Open& b) { return a.last < b.last; });
    BucketPlan plan;
    for (auto& open : finished) plan.buckets.push_back(std::move(open.bucket));
    return plan;
}

std::uint64_t hash_plan(const BucketPlan& plan) {
    Hash hash;
    hash.add(plan.buckets.size());
    for (const auto& bucket : plan.buckets) {
        hash.add(static_cast<std::uint64_t>(bucket.dtype)).add(bucket.bytes).add(bucket.params.size());
        for (std::size_t i = 0; i < bucket.params.size(); ++i)
            hash.add(static_cast<std::uint64_t>(bucket.params[i])).add(bucket.offsets[i]);
    }
    return hash.value() ? hash.value() : 1;
}

}  // namespace libddp
