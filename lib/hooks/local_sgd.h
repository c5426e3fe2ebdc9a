// Post-local SGD: the mean over all ranks at first, and from some step on only over a subgroup, or over nobody.
#pragma once

#include "hooks/hook.h"
#include "hooks/step_counter.h"

namespace libddp {

class LocalSgdHook final : public Hook {
public:
    // subgroup: null for none.
    LocalSgdHook(std::int64_t start_step, std::shared_ptr<Group> subgroup)
        : start_step_(start_step), subgroup_{std::move(subgroup)} {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    std::string name() const override { return "post_local_sgd"; }
    bool keeps_models_alike() const override { return false; }
    // Without the subgroup: those of different ranks may differ in size.
    std::string options() const override { return str("start=", start_step_); }
    void save(HookState& state) const override;
    void load(const HookState& state) override;

private:
    const std::int64_t start_step_;
    ddp_group subgroup_;
    StepCounter steps_;
};

}  // namespace libddp
