// The processors that this process may use.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace libddp {

// A set of processors, as large as this machine needs: a cpu_set_t ends at 1,024.
class ProcessorSet {
public:
    // The processors that the calling thread may use. Empty if the system does not tell.
    static ProcessorSet of_this_thread();
    explicit ProcessorSet(const std::vector<int>& processors);

    int count() const { return CPU_COUNT_S(bytes(), data()); }
    // Lets the calling thread, and what it starts, use these only. False, with errno, if the system
    // refuses.
    bool use() const { return sched_setaffinity(0, bytes(), data()) == 0; }

private:
    explicit ProcessorSet(std::size_t bytes) : words_(bytes / sizeof(unsigned long)) {}
    std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }
    cpu_set_t* data() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
    const cpu_set_t* data() const { return reinterpret_cast<const cpu_set_t*>(words_.data()); }

    std::vector<unsigned long> words_;
};

// How many processors this process can keep busy: those that the calling thread may use, and no
// more than what the quotas of its control groups pay for, rounded up. At least 1.
int usable_processors();

// The processors that the quotas of this process's control groups pay for, rounded up: the least of
// cpu.max, and of cpu.cfs_quota_us in version 1, over its own group and the ones above. 0: no
// quota. root: the folder with proc/self and the places of the control groups.
int processors_of_quota(const std::string& root = "/");

}  // namespace libddp
