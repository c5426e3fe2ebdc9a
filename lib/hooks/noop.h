// Communicates nothing: every rank keeps its own gradients. For measuring how much time communication costs at all.
#pragma once

#include "hooks/hook.h"

namespace libddp {

class NoopHook final : public Hook {
public:
    WorkPtr reduce(ddp_group&, ddp_bucket&) override { return nullptr; }
    std::string name() const override { return "noop"; }
    bool keeps_models_alike() const override { return false; }
};

}  // namespace libddp
