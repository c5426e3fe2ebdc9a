// PowerSGD with one square matrix for each bucket: its elements in order, with zeros after them. Errors still belong to
// parameters, so that other buckets may hold them in a later step.
#pragma once

#include <map>
#include <memory>

#include "hooks/job_pool.h"
#include "hooks/powersgd.h"

namespace libddp {

class BatchedPowerSgdHook final : public PowerSgdHook {
public:
    explicit BatchedPowerSgdHook(const ddp_powersgd_options& options) : PowerSgdHook(options, "batched_powersgd") {}

private:
    struct Job;

    void set_buckets(const Buckets& buckets) override;
    WorkPtr compress(ddp_group& group, ddp_bucket& bucket) override;
    std::shared_ptr<std::byte> errors_of(const ddp_bucket& bucket, powersgd::Site& site);
    void lay_out(const ddp_bucket& bucket, std::size_t side, std::size_t columns, Job& job);
    static void project(const Job& job);
    static void project_back(const Job& job);
    static void restore(const Job& job);

    JobPool<Job> jobs_;
    // By bucket: the errors of its parameters, laid out as the bucket is, and so a matrix of the same shape. They are
    // kept alive by the parameters' states, which point into them.
    std::map<std::int32_t, std::weak_ptr<std::byte>> blocks_;
};

}  // namespace libddp
