#include "core/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "device/memory.h"
#include "util/hash.h"

namespace libddp {
namespace {

using Key = std::tuple<Lane, ddp_dtype, ddp_device_kind, std::int32_t>;

// A bucket that is still being filled, and what orders it among the others.
struct Open {
    PlanBucket bucket;
    Lane lane = Lane::kNormal;
    std::size_t last = 0;  // position in the order of its last gradient
};

void append(PlanBucket& bucket, std::int32_t param, const PlanParam& p) {
    bucket.dtype = p.dtype;
    bucket.device = p.device;
    bucket.alone = p.alone;
    bucket.sparse = p.sparse;
    bucket.params.push_back(param);
    bucket.offsets.push_back(bucket.bytes);
    if (p.sparse) return;
    bucket.bytes += align_up(p.bytes);
    bucket.content += p.bytes;
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
    struct Row {
        Open open;
        std::size_t closed = 0;
    };
    std::map<Key, Row> rows;
    std::vector<Open> finished;
    for (std::size_t position = 0; position < order.size(); ++position) {
        const std::int32_t id = order[position];
        const PlanParam& p = params[static_cast<std::size_t>(id)];
        if (p.alone) {
            append(finished.emplace_back(Open{{}, p.lane, position}).bucket, id, p);
            continue;
        }
        Row& row = rows[{p.lane, p.dtype, p.device.kind, p.device.index}];
        append(row.open.bucket, id, p);
        row.open.lane = p.lane;
        row.open.last = position;
        if (row.open.bucket.content >= caps[std::min(row.closed, caps.size() - 1)]) {
            finished.push_back(std::move(row.open));
            row.open = {};
            ++row.closed;
        }
    }
    for (auto& [_, row] : rows)
        if (!row.open.bucket.params.empty()) finished.push_back(std::move(row.open));

    std::sort(finished.begin(), finished.end(),
              [](const Open& a, const Open& b) { return std::tie(a.lane, a.last) < std::tie(b.lane, b.last); });
    BucketPlan plan;
    for (auto& open : finished) plan.buckets.push_back(std::move(open.bucket));
    return plan;
}

BucketPlan lay_out(const std::vector<PlanParam>& params, const std::vector<std::vector<std::int32_t>>& buckets) {
    BucketPlan plan;
    for (const auto& ids : buckets) {
        PlanBucket& bucket = plan.buckets.emplace_back();
        for (std::int32_t id : ids) append(bucket, id, params[static_cast<std::size_t>(id)]);
    }
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
