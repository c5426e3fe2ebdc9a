// PowerSGD with one matrix for each parameter.
#pragma once

#include "hooks/job_pool.h"
#include "hooks/powersgd.h"

namespace libddp {

class LayeredPowerSgdHook final : public PowerSgdHook {
public:
    explicit LayeredPowerSgdHook(const ddp_powersgd_options& options) : PowerSgdHook(options, "powersgd") {}

private:
    struct Job;

    void set_buckets(const Buckets& buckets) override;
    WorkPtr compress(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) override;
    void lay_out(const ddp_bucket& bucket, Job& job);
    static void project(const Job& job);
    static void project_back(const Job& job);
    static void restore(const Job& job);

    JobPool<Job> jobs_;
};

}  // namespace libddp
