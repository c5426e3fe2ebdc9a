// Post-local SGD: the mean over all ranks at first, and from some step on only over a subgroup, or
// over nobody.
#include "hooks/builtin.h"
#include "hooks/kept.h"
#include "hooks/plain.h"
#include "hooks/state.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp {
namespace {

constexpr const char* kLocalSgd = "post_local_sgd";

class LocalSgdHook final : public Hook {
public:
    // subgroup: null for none.
    LocalSgdHook(std::int64_t start_step, std::int32_t size, std::shared_ptr<Group> subgroup)
        : start_step_(start_step), size_(size), subgroup_{std::move(subgroup)} {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    std::string name() const override { return kLocalSgd; }
    bool keeps_models_alike() const override { return false; }
    std::string options() const override { return str("start=", start_step_, ",subgroup=", size_); }
    void forget_step(std::int64_t step) override { steps_.take_back(step); }
    std::int64_t steps() const override { return steps_.begun(); }
    void resume(std::int64_t steps) override { steps_.resume(steps); }
    void save(HookState& state) const override;
    void load(const HookState& state) override;

private:
    const std::int64_t start_step_;
    const std::int32_t size_;  // ranks of a subgroup
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
    steps_.save(state);
}

void LocalSgdHook::load(const HookState& state) {
    steps_.resume(StepCounter::read(state, kLocalSgd));
}

// A subgroup of all ranks is the group itself. One of a single rank is none, also in a group of one
// rank: the context may leave that group.
HookPtr make_local_sgd(OptionReader& options, const std::shared_ptr<Group>& group) {
    std::int64_t start_step = 1000;
    std::int32_t size = 1;
    const std::int32_t world = group->world();
    options.integer("start", start_step, 0);
    options.integer("subgroup", size, 1, world);
    options.finish();  // before ranks wait for each other in split()
    if (world % size != 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, options.name("subgroup"), ": ", size,
             " does not divide the world size, ", world);
    std::shared_ptr<Group> subgroup;
    if (size > 1)
        subgroup = size == world ? group : group->split(group->rank() / size, group->rank(), {});
    return std::make_shared<LocalSgdHook>(start_step, size, std::move(subgroup));
}

}  // namespace libddp
