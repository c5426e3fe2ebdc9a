// Another hook in lower precision: the bucket is cast to f16 or bf16, given to that hook, and what it leaves is cast back
// while it is copied into the gradients.
#pragma once

#include "hooks/hook.h"
#include "hooks/job_pool.h"

namespace libddp {

class CastHook final : public Hook {
public:
    // dtype: DDP_F16 or DDP_BF16.
    CastHook(HookPtr inner, ddp_dtype dtype) : inner_(std::move(inner)), dtype_(dtype) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket) override;
    Target target(ddp_bucket& bucket) override;
    void set_buckets(const Buckets& buckets) override {
        jobs_.clear();
        inner_->set_buckets(buckets);
    }
    std::string name() const override;
    std::string options() const override { return inner_->options(); }
    bool any_thread() const override { return inner_->any_thread(); }
    bool keeps_models_alike() const override { return inner_->keeps_models_alike(); }
    void save(HookState& state) const override { inner_->save(state); }
    void load(const HookState& state) override { inner_->load(state); }

private:
    struct Job;

    static bool narrows(const ddp_bucket& bucket);

    const HookPtr inner_;
    const ddp_dtype dtype_;
    JobPool<Job> jobs_;
};

}  // namespace libddp
