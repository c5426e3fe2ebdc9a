// The default communication hook: the mean (or sum) over ranks.
#pragma once

#include "hooks/hook.h"

namespace libddp {

class AllreduceHook final : public Hook {
public:
    WorkPtr reduce(ddp_group& group, ddp_bucket& bucket) override;
    std::string name() const override { return "allreduce"; }
    bool sums_prescaled() const override { return true; }
};

// The mean (or sum), as the context asks, of a bucket's buffer.
WorkPtr allreduce(ddp_group& group, const ddp_bucket& bucket);

}  // namespace libddp
