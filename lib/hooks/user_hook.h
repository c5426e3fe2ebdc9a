// A hook that is a function of the user's: ddp_set_comm_hook.
#pragma once

#include "ddp/hook.h"
#include "hooks/hook.h"

namespace libddp {

class UserHook final : public Hook {
public:
    // user_data: its deleter is the user's destroy function.
    UserHook(ddp_comm_hook_fn fn, std::shared_ptr<void> user_data) : fn_(fn), user_data_(std::move(user_data)) {}

    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket) override;
    std::string name() const override { return "user"; }
    bool any_thread() const override { return false; }

private:
    const ddp_comm_hook_fn fn_;
    const std::shared_ptr<void> user_data_;
};

}  // namespace libddp
