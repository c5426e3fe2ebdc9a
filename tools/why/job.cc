#include "why/job.h"

namespace why {

Job read_job(const std::string& folder, const libddp::record::Limits& limits,
             std::int32_t least_world) {
    Job job;
    job.folder = folder;
    job.processes = libddp::record::read_records(folder, job.complaints, limits);
    job.groups = libddp::record::find_groups(job.processes, libddp::record::read_sights(folder),
                                             least_world);
    return job;
}

}  // namespace why
