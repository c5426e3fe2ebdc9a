// A control group with a quota of processor time, where this machine lets a test make one.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace libddp {

// While this lives, the process is in a group of its own with this quota, in version 1 or 2 of
// control groups.
class QuotaGroup {
public:
    QuotaGroup(long quota_us, long period_us) {
        const std::string name = "/ddp-test-" + std::to_string(getpid());
        // Version 1 has one folder for each controller.
        for (const char* place :
             {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"}) {
            home_ = place;
            folder_ = home_ + name;
            before_ = home_ + group_in(home_ == "/sys/fs/cgroup" ? "::" : "cpu");
            if (mkdir(folder_.c_str(), 0755) != 0) continue;
            const bool limited = home_ == "/sys/fs/cgroup"
                                     ? write("/cpu.max", quota_us, " ", period_us)
                                     : write("/cpu.cfs_period_us", period_us) &&
                                           write("/cpu.cfs_quota_us", quota_us);
            if (limited && write("/cgroup.procs", getpid())) return;
            rmdir(folder_.c_str());
        }
        folder_.clear();
    }
    ~QuotaGroup() {
        if (folder_.empty()) return;
        for (const std::string& back : {before_, home_}) {
            std::ofstream(back + "/cgroup.procs") << getpid() << std::flush;
            if (rmdir(folder_.c_str()) == 0) return;
        }
    }
    QuotaGroup(const QuotaGroup&) = delete;
    QuotaGroup& operator=(const QuotaGroup&) = delete;

    bool made() const { return !folder_.empty(); }

private:
    // The process's own group, from the line of /proc/self/cgroup with this word:
    // "1:cpu,cpuacct:/group", "0::/group".
    static std::string group_in(const std::string& word) {
        std::ifstream groups("/proc/self/cgroup");
        for (std::string line; std::getline(groups, line);)
            if (line.find(word) != std::string::npos && line.find("cpuset") == std::string::npos)
                return line.substr(line.find(":/") + 1);
        return "";
    }

    template <class... Parts>
    bool write(const char* file, Parts... parts) const {
        std::ofstream out(folder_ + file);
        (out << ... << parts) << std::flush;
        return out.good();
    }

    std::string home_;
    std::string before_;
    std::string folder_;
};

}  // namespace libddp
