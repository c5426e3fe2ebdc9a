// The bucket plan: which gradient stands where, and in which order buckets are launched. A value;
// pure functions make it of the order in which gradients become ready.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/tag.h"
#include "core/param_table.h"
#include "ddp/types.h"
#include "hooks/bucket.h"

namespace libddp {

class Group;

// Parameters of different classes never share a bucket; buckets are launched class by class.
enum class BucketClass : std::uint8_t { kNormal, kDelayed, kFrozen };

// The facts of a parameter that planning needs.
struct PlanParam {
    std::size_t bytes = 0;
    ddp_dtype dtype = DDP_F32;
    ddp_device device{DDP_DEVICE_CPU, 0};
    BucketClass bucket_class = BucketClass::kNormal;
    bool alone = false;   // in a bucket of its own
    bool sparse = false;  // in a bucket without memory
    bool in_place = false;
    std::int32_t follows = -1;  // as Param's
};

struct PlanBucket {
    ddp_dtype dtype = DDP_F32;
    ddp_device device{DDP_DEVICE_CPU, 0};
    // in the order in which gradients are expected; in place: as they lie in memory
    std::vector<std::int32_t> params;
    // bytes from the bucket's start; multiples of kAlignment, unless in place
    std::vector<std::size_t> offsets;
    std::size_t bytes = 0;    // with the gaps
    std::size_t content = 0;  // bytes of gradients, without gaps: what caps count
    bool alone = false;
    bool sparse = false;
    bool in_place = false;                // a range of the program's memory, without gaps
    std::vector<BucketSection> sections;  // none: every rank gets all of it
};

struct BucketPlan {
    std::vector<PlanBucket> buckets;  // in launch order

    bool operator==(const BucketPlan& other) const;
};

// Reverse registration order: gradients come roughly from the last layer to the first (Li et al.
// 2020, section 3.2.3).
std::vector<std::int32_t> reverse_order(std::size_t count);

// Walks `order` and fills one open bucket for each (class, dtype, device). A parameter is added
// first, and then the bucket is closed if it has reached the cap, so a bucket may exceed it.
// caps[i] is the cap in bytes of the i-th bucket of each (class, dtype, device); the last one
// repeats. Buckets of a class are launched in the order in which their last gradient is expected.
// Gradients that are reduced in place stay where they are: the order says only when their buckets
// are launched. Such a bucket is filled from the end of a range of memory to its beginning, as
// backward passes go.
BucketPlan make_plan(const std::vector<PlanParam>& params, const std::vector<std::int32_t>& order,
                     const std::vector<std::size_t>& caps);

// A bucket that has the parameters of one before, in another order, becomes that one: buckets are
// launched when the last of their gradients is there, so nothing is lost, and nothing moves.
void keep_orders(BucketPlan& plan, const BucketPlan& before);

// The cap of the first bucket, which is small so that communication starts early, and that of the
// others. first 0: 1 MiB at most.
std::vector<std::size_t> make_caps(std::size_t first, std::size_t cap);

// A plan of given buckets, each a list of parameters of one dtype and device.
BucketPlan lay_out(const std::vector<PlanParam>& params,
                   const std::vector<std::vector<std::int32_t>>& buckets);

// Equal plans have equal hashes, on every machine. Never 0.
std::uint64_t hash_plan(const BucketPlan& plan);

// A bucket plan as text, so that a job that is started again, or a person, can say what it shall
// be.
std::string plan_to_text(const BucketPlan& plan, const ParamTable& table);

// The buckets as lists of parameters. Throws INVALID_ARGUMENT, naming what is wrong.
std::vector<std::vector<std::int32_t>> plan_from_text(const std::string& text,
                                                      const ParamTable& table);

// The same lists of rank 0, on all ranks. Collective. of: the tag of the context. Throws
// INVALID_ARGUMENT if they are no plan for this table.
std::vector<std::vector<std::int32_t>> plan_of_rank_0(Group& group, const OpTag& of,
                                                      const BucketPlan& mine,
                                                      const ParamTable& table);

// The order in which gradients become ready: recorded now and then, agreed between ranks, and
// followed by the next plan.
class ReadyOrder {
public:
    // Until something is recorded the order is `initial`.
    explicit ReadyOrder(std::vector<std::int32_t> initial);

    void start();
    bool recording() const { return recording_; }
    // One call a parameter; any thread.
    void note(std::int32_t param) {
        heard_[count_.fetch_add(1, std::memory_order_relaxed)] = param;
    }
    // Ends recording. Parameters that were not heard of follow in the order so far.
    void finish();

    // This rank's own, as last recorded. Empty before.
    const std::vector<std::int32_t>& own() const { return own_; }
    // The order that all ranks last agreed on.
    const std::vector<std::int32_t>& agreed() const { return agreed_; }
    // Collective: that of rank `root`, or (consensus) by the mean place that a parameter has on the
    // ranks (section 6.2.1 of the paper asks for such a consensus).
    void agree(Group& group, const OpTag& of, std::int32_t root, bool consensus);

private:
    std::vector<std::int32_t> agreed_, own_, heard_;
    std::atomic<std::uint32_t> count_{0};
    bool recording_ = false;
};

}  // namespace libddp
