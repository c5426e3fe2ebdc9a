// Hooks that send gradients in fewer bytes: each rank packs its own with a codec, all ranks exchange the packed bytes, and
// each adds up what came. No collective can add packed numbers, so a rank receives bytes from every other.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <type_traits>

#include "hooks/codec.h"
#include "hooks/hook.h"
#include "hooks/job_pool.h"
#include "hooks/kept.h"
#include "hooks/state.h"

namespace libddp {

class GatherHook final : public Hook {
public:
    struct Setup {
        std::string name, options;
        std::int64_t min_elements = 0;               // smaller parameters are reduced as they are
        bool feedback = false;                       // what packing loses is added to the next step's gradient
        std::unique_ptr<const Codec<float>> narrow;  // of f16, bf16 and f32
        std::unique_ptr<const Codec<double>> wide;   // of f64
    };

    explicit GatherHook(Setup setup) : setup_(std::move(setup)) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket) override;
    std::string name() const override { return setup_.name; }
    std::string options() const override { return setup_.options; }
    void save(HookState& state) const override;
    void load(const HookState& state) override;

private:
    struct Job;
    struct Part;

    // Real: what a bucket is computed in, f64 in double and everything else in float.
    template <class Real>
    const Codec<Real>& codec() const {
        if constexpr (std::is_same_v<Real, double>)
            return *setup_.wide;
        else
            return *setup_.narrow;
    }
    bool packs(const BucketTensor& tensor) const;
    template <class Real>
    // What earlier steps left out of a parameter.
    Kept& residual(const BucketTensor& tensor);
    template <class Real>
    WorkPtr start(Group& group, ddp_bucket& bucket);
    template <class Real>
    void lay_out(const ddp_bucket& bucket, Job& job);
    template <class Real>
    static const Real* input(const ddp_bucket& bucket, const Job& job, const Part& part);
    template <class Real>
    void pack(const ddp_bucket& bucket, const Job& job) const;
    template <class Real>
    void unpack(const ddp_bucket& bucket, const Job& job) const;
    template <class Real>
    void add_up(const ddp_bucket& bucket, const Job& job, const Part& part, std::size_t begin, std::size_t n,
                Real* sum) const;
    template <class Real>
    void keep(const Job& job, const Part& part, std::size_t begin, std::size_t n) const;

    const Setup setup_;
    JobPool<Job> jobs_;
    // By parameter, so that another layout of the buckets changes nothing. Entries stay where they are: jobs on their
    // way point to them.
    std::map<ddp_param, Kept> residuals_;
};

// Throws INVALID_ARGUMENT, naming `call`, if it is negative.
void require_min_elements(std::int64_t min_elements, const char* call);

}  // namespace libddp
