// Memory that a hook needs for a bucket while it is on its way, kept from step to step: fresh pages cost more than the
// arithmetic on them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace libddp {

template <class Job>
class JobPool {
public:
    // The bucket's job. It is a new one if an operation of a step that failed may still use the old one.
    std::shared_ptr<Job> take(std::int32_t bucket) {
        std::shared_ptr<Job>& job = jobs_[bucket];
        if (!job || job.use_count() > 1) job = std::make_shared<Job>();
        return job;
    }
    // What is on its way keeps its job.
    void clear() { jobs_.clear(); }

private:
    std::map<std::int32_t, std::shared_ptr<Job>> jobs_;
};

}  // namespace libddp
