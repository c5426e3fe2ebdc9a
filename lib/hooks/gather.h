// Hooks that send gradients in fewer bytes: each rank packs its own with a codec, all ranks exchange the packed bytes, and
// each adds up what came. No collective can add packed numbers, so a rank receives bytes from every other. It is the same on
// the CPU and on devices: who packs and unpacks is whose memory the bucket is.
#pragma once

#include <map>
#include <string>

#include "hooks/hook.h"
#include "hooks/job_pool.h"
#include "hooks/kept.h"
#include "hooks/state.h"
#include "kernels/codec.h"

namespace libddp {

class GatherHook final : public Hook {
public:
    struct Setup {
        std::string name, options;
        std::int64_t min_elements = 0;  // smaller parameters are reduced as they are
        bool feedback = false;          // what packing loses is added to the next step's gradient
        ddp_codec codec{};
    };

    explicit GatherHook(Setup setup) : setup_(std::move(setup)) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    void set_buckets(const Buckets&) override { jobs_.clear(); }
    std::string name() const override { return setup_.name; }
    std::string options() const override { return setup_.options; }
    void save(HookState& state) const override;
    void load(const HookState& state) override;

private:
    struct Job;

    bool packs(const BucketTensor& tensor) const;
    void lay_out(const Group& group, const ddp_bucket& bucket, Job& job);
    // What earlier steps left out of a parameter.
    std::byte* residual(const ddp_bucket& bucket, const BucketTensor& tensor);

    const Setup setup_;
    JobPool<Job> jobs_;
    // By parameter, so that another layout of the buckets changes nothing. Their memory stays where it is: jobs on their
    // way point to it.
    std::map<ddp_param, Kept> residuals_;
};

}  // namespace libddp
