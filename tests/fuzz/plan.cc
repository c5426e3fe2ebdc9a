// A bucket plan as text, of a file or written by hand.
#include "core/plan.h"

#include <algorithm>

#include "fuzz/model.h"
#include "fuzz/target.h"

namespace fuzz::plan {
namespace {

using namespace libddp;

using Buckets = std::vector<std::vector<std::int32_t>>;

std::vector<PlanParam> plan_params() {
    std::vector<PlanParam> params;
    for (const Param& p : model().params())
        params.push_back({p.bytes, p.dtype, p.device, BucketClass::kNormal, p.alone(), p.sparse});
    return params;
}

void check_buckets(const Buckets& buckets) {
    std::vector<std::int32_t> all;
    for (const auto& bucket : buckets) {
        check(!bucket.empty(), "a bucket is empty");
        all.insert(all.end(), bucket.begin(), bucket.end());
    }
    std::sort(all.begin(), all.end());
    std::vector<std::int32_t> expected;
    for (std::int32_t id = 0; id < model().size(); ++id)
        if (!model()[id].ignored) expected.push_back(id);
    check(all == expected, "a plan lacks a parameter, or has one twice");
}

}  // namespace

DDP_FUZZ_TARGET(plan, input) {
    Buckets buckets;
    if (!accepts([&] { buckets = plan_from_text(std::string(input), model()); })) return;
    check_buckets(buckets);
    const BucketPlan made = lay_out(plan_params(), buckets);
    check(hash_plan(made) != 0, "a plan has the hash 0");
    check(plan_from_text(plan_to_text(made, model()), model()) == buckets,
          "a plan changes when it is saved");
}

}  // namespace fuzz::plan
