// Post-local SGD: the mean over all ranks at first, and from some step on only over a subgroup, or over nobody.
#include "hooks/hook.h"
#include "hooks/kept.h"
#include "hooks/options.h"
#include "hooks/plain.h"
#include "hooks/state.h"
#include "util/error.h"

namespace libddp {
namespace {

constexpr const char* kSteps = "steps";

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
    void forget_step(std::int64_t step) override { steps_.take_back(step); }
    std::int64_t steps() const override { return steps_.begun(); }
    void resume(std::int64_t steps) override { steps_.resume(steps); }
    void save(HookState& state) const override;
    void load(const HookState& state) override;

private:
    const std::int64_t start_step_;
    ddp_group subgroup_;
    StepCounter steps_;
};

}  // namespace

WorkPtr LocalSgdHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    steps_.note(bucket.step);
    if (steps_.begun() <= start_step_) return group.impl->submit(allreduce_of(bucket), tag);
    return subgroup_.impl ? subgroup_.impl->submit(allreduce_of(bucket), tag) : nullptr;
}

void LocalSgdHook::save(HookState& state) const {
    state.numbers[kSteps] = steps_.begun();
}

void LocalSgdHook::load(const HookState& state) {
    const auto steps = state.numbers.find(kSteps);
    if (steps == state.numbers.end() || !StepCounter::plausible(steps->second))
        fail(DDP_ERROR_INVALID_ARGUMENT, "post_local_sgd: the state does not say after how many steps it was saved");
    steps_.resume(steps->second);
}

ddp_local_sgd_options local_sgd_defaults() {
    return {sizeof(ddp_local_sgd_options), 1000, nullptr};
}

HookPtr make_local_sgd(std::int64_t start_step, std::shared_ptr<Group> subgroup) {
    if (start_step < 0)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "start_step is ", start_step, "; it must not be negative");
    return std::make_shared<LocalSgdHook>(start_step, std::move(subgroup));
}

}  // namespace libddp
