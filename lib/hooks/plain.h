// Hooks that send gradients as they are, or not at all.
#pragma once

#include "ddp/hook.h"
#include "hooks/hook.h"

namespace libddp {

// The default: the mean (or sum) over ranks, of what each is to get.
class AllreduceHook final : public Hook {
public:
    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    std::string name() const override { return "allreduce"; }
    bool is_allreduce() const override { return true; }
    bool can_be_captured() const override { return true; }
};

// The mean (or sum), as the context asks, of a bucket's buffer, for every rank.
Collective allreduce_of(const ddp_bucket& bucket);

// Communicates nothing: every rank keeps its own gradients. For measuring how much time
// communication costs at all.
class NoopHook final : public Hook {
public:
    WorkPtr reduce(ddp_group&, ddp_bucket&, const OpTag&) override { return nullptr; }
    std::string name() const override { return "noop"; }
    bool keeps_models_alike() const override { return false; }
};

// A function of the user's: ddp_set_comm_hook.
class UserHook final : public Hook {
public:
    // user_data: its deleter is the user's destroy function.
    UserHook(ddp_comm_hook_fn fn, std::shared_ptr<void> user_data)
        : fn_(fn), user_data_(std::move(user_data)) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    std::string name() const override { return "user"; }
    bool any_thread() const override { return false; }
    bool ends_last() const override { return false; }

private:
    const ddp_comm_hook_fn fn_;
    const std::shared_ptr<void> user_data_;
};

}  // namespace libddp
