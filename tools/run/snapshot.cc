#include "snapshot.h"

#include <algorithm>
#include <map>

#include "text.h"

namespace ddprun {
namespace {

namespace record = libddp::record;

// Rates are those of this time.
constexpr std::int64_t kLatelyNs = 30'000'000'000;
constexpr record::Limits kLimits{record::kEvents, std::uint64_t{64} << 20};

bool is_over(const record::Group& group) {
    return std::all_of(group.ranks.begin(), group.ranks.end(), [](const record::Position& position) {
        return !position.process || position.at == record::Position::At::kLeft;
    });
}

}  // namespace

Snapshot::Snapshot(const std::string& folder) {
    std::vector<std::string> complaints;
    processes_ = record::read_records(folder, complaints, kLimits);
    std::vector<record::Group> groups = record::find_groups(processes_, record::read_sights(folder), 1);
    std::map<std::string, int> seen, names;
    for (const record::Group& group : groups) ++names[group.name];
    for (record::Group& group : groups) {
        const int number = ++seen[group.name];
        if (is_over(group) && number < names[group.name]) continue;  // a newer one has taken its place
        GroupNow now;
        now.label = why::printable(group.name);
        if (number > 1) now.label.append("#").append(std::to_string(number));
        for (const record::Position& position : group.ranks) {
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
