#include "snapshot.h"

#include <algorithm>
#include <map>
#include <utility>

#include "util/printable.h"
#include "why/job.h"

namespace ddprun {
namespace {

namespace record = libddp::record;

// Rates are those of this time.
constexpr std::int64_t kLatelyNs = 30'000'000'000;

}  // namespace

Snapshot::Snapshot(const std::string& folder) {
    why::Job job = why::read_job(folder, record::kLastEvents, 1);
    processes_ = std::move(job.processes);
    complaints_ = std::move(job.complaints);
    std::map<std::string, int> seen, names;
    for (const record::Group& group : job.groups) ++names[group.name];
    const bool any_runs = std::any_of(job.groups.begin(), job.groups.end(),
                                      [](const auto& group) { return !record::is_over(group); });
    for (record::Group& group : job.groups) {
        const int number = ++seen[group.name];
        const bool is_newest = number == names[group.name];
        // A newer one has taken its place, or its only rank has gone on to one with others.
        if (record::is_over(group) && (!is_newest || (group.world == 1 && any_runs))) continue;
        GroupNow now;
        now.label = libddp::printable(group.name);
        if (number > 1) now.label.append("#").append(std::to_string(number));
        for (const record::Position& position : group.recorded) {
            now.progress.push_back(record::find_progress(group, position, kLatelyNs));
        }
        if (group.world > 1) {
            now.pace = record::find_pace(group, kLatelyNs);
            now.cause = record::find_cause(group, record::kPatienceNs);
        }
        now.group = std::move(group);
        groups_.push_back(std::move(now));
    }
}

}  // namespace ddprun
