// The content of the records of this node's ranks at one moment: for --metrics and --status. No
// rank is asked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "why/cause.h"
#include "why/lateness.h"
#include "why/progress.h"

namespace ddprun {

struct GroupNow {
    std::string label;  // its name, with a number if there are several of this name
    libddp::record::Group group;
    std::vector<libddp::record::Progress> progress;  // of each rank
    // only where the records of all ranks are there
    std::optional<libddp::record::Pace> pace;
    std::optional<libddp::record::Cause> cause;  // who holds it up
};

class Snapshot {
public:
    // Throws std::runtime_error if the folder cannot be read. A record that cannot be read is left
    // out, and complaints() name it.
    explicit Snapshot(const std::string& folder);
    Snapshot(const Snapshot&) = delete;
    Snapshot& operator=(const Snapshot&) = delete;

    const std::vector<libddp::record::ProcessRecord>& processes() const { return processes_; }
    const std::vector<GroupNow>& groups() const { return groups_; }
    const std::vector<std::string>& complaints() const { return complaints_; }

private:
    std::vector<libddp::record::ProcessRecord> processes_;
    std::vector<GroupNow> groups_;
    std::vector<std::string> complaints_;
};

}  // namespace ddprun
