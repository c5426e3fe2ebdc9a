// Hooks around another hook: one in lower precision, and one with a function of the user's after
// it.
#pragma once

#include "ddp/more_hooks.h"
#include "hooks/hook.h"
#include "hooks/job.h"

namespace libddp {

// Is in everything as the other hook is, but for what it overrides.
class WrapperHook : public Hook {
public:
    explicit WrapperHook(HookPtr inner) : inner_(std::move(inner)) {}

    Target target(ddp_bucket& bucket) override { return inner_->target(bucket); }
    void set_buckets(const Buckets& buckets) override { inner_->set_buckets(buckets); }
    std::string options() const override { return inner_->options(); }
    bool any_thread() const override { return inner_->any_thread(); }
    bool keeps_models_alike() const override { return inner_->keeps_models_alike(); }
    bool ends_last() const override { return inner_->ends_last(); }
    bool gives_results_early() const override { return inner_->gives_results_early(); }
    bool depends_on_buckets() const override { return inner_->depends_on_buckets(); }
    void forget_step(std::int64_t step) override { inner_->forget_step(step); }
    std::int64_t steps() const override { return inner_->steps(); }
    void resume(std::int64_t steps) override { inner_->resume(steps); }
    void save(HookState& state) const override { inner_->save(state); }
    void load(const HookState& state) override { inner_->load(state); }

protected:
    Hook& inner() const { return *inner_; }

private:
    const HookPtr inner_;
};

// The bucket is cast to f16 or bf16, given to the other hook, and what that leaves is cast back
// while it is copied into the gradients.
class CastHook final : public WrapperHook {
public:
    // dtype: DDP_F16 or DDP_BF16.
    CastHook(HookPtr inner, ddp_dtype dtype) : WrapperHook(std::move(inner)), dtype_(dtype) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    Target target(ddp_bucket& bucket) override;
    void set_buckets(const Buckets& buckets) override {
        jobs_.clear();
        WrapperHook::set_buckets(buckets);
    }
    std::string name() const override;
    bool can_be_captured() const override { return inner().can_be_captured(); }

private:
    struct Job;

    static bool narrows(const ddp_bucket& bucket);

    const ddp_dtype dtype_;
    JobPool<Job> jobs_;
};

// The other hook, and then a function of the user's on its result, while later buckets still
// travel.
class ThenHook final : public WrapperHook {
public:
    // user_data: its deleter is the user's destroy function.
    ThenHook(HookPtr inner, ddp_bucket_fn fn, std::shared_ptr<void> user_data, bool any_thread)
        : WrapperHook(std::move(inner)), user_{fn, std::move(user_data), any_thread} {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    std::string name() const override { return str("then(", inner().name(), ")"); }
    bool any_thread() const override { return inner().any_thread() && user_.any_thread; }
    // Its function may update values bucket by bucket, at other moments on each rank.
    bool keeps_models_alike() const override { return false; }
    bool ends_last() const override { return false; }
    bool gives_results_early() const override { return true; }

private:
    struct User {
        ddp_bucket_fn fn;
        std::shared_ptr<void> data;
        bool any_thread;

        void call(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) const;
    };

    const User user_;
};

}  // namespace libddp
