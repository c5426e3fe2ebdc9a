#include "record/clocks.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "ddp/backend.h"

namespace libddp::record {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 4;

// Processes of one boot of a machine have one monotonic clock. The boot is the first word, unless DDP_HOST_ID is set.
std::string machine_of(const ProcessRecord& process) {
    const bool given = process.host_id.starts_with("given ");
    return given ? process.host_id + ' ' + process.host : process.host_id.substr(0, process.host_id.find(' '));
}

// The ranks of one machine in one collective: when the last of them began it, and when the first of them ended it.
struct Times {
    std::int64_t last_begin = -kMost, first_end = kMost;
};
using Collective = std::map<std::string, Times>;  // by machine

// Whether every rank needs something from every other one.
bool joins_all(std::int32_t kind) {
    return kind == DDP_COLLECTIVE_ALLREDUCE || kind == DDP_COLLECTIVE_ALLGATHER ||
           kind == DDP_COLLECTIVE_REDUCE_SCATTER || kind == DDP_COLLECTIVE_BARRIER;
}

std::vector<Collective> find_collectives(const std::vector<ProcessRecord>& records) {
    std::map<std::string, Collective> found;
    for (const ProcessRecord& process : records) {
        const std::string machine = machine_of(process);
        for (const Event& event : process.events) {
            const bool ended = event.kind == EventKind::kOperationEnd && event.param == DDP_OK;
            if (!ended || !joins_all(collective_of(event.detail))) continue;
            const GroupRecord* group = process.group(event.owner);
            if (!group || group->world < 2) continue;
            const std::string key = group->name + '\n' + group->key + '\n' + std::to_string(event.sequence);
            Times& times = found[key][machine];
            times.last_begin = std::max(times.last_begin, event.since_ns);
            times.first_end = std::min(times.first_end, event.time_ns);
        }
    }
    std::vector<Collective> collectives;
    for (auto& [key, collective] : found)
        if (collective.size() > 1) collectives.push_back(std::move(collective));
    return collectives;
}

// What must be added to times of machine b to compare them with those of a: no less than `least`, no more than `most`.
struct Bounds {
    std::int64_t least = -kMost, most = kMost;

    bool known() const { return least > -kMost && most < kMost; }
    std::int64_t middle() const { return least + (most - least) / 2; }
    // Clocks that drift apart make the bounds cross.
    std::int64_t width() const { return std::abs(most - least); }
};

Bounds find_bounds(const std::vector<Collective>& collectives, const std::string& a, const std::string& b) {
    Bounds bounds;
    for (const Collective& collective : collectives) {
        const auto at_a = collective.find(a), at_b = collective.find(b);
        if (at_a == collective.end() || at_b == collective.end()) continue;
        bounds.most = std::min(bounds.most, at_a->second.first_end - at_b->second.last_begin);
        bounds.least = std::max(bounds.least, at_a->second.last_begin - at_b->second.first_end);
    }
    return bounds;
}

}  // namespace

Clocks::Clocks(const std::vector<ProcessRecord>& records) {
    if (records.empty()) return;
    std::map<std::string, Clock> rest;
    for (const ProcessRecord& process : records)
        rest.try_emplace(machine_of(process),
                         Clock{process.opened_realtime_ns - process.opened_monotonic_ns, kUnknown});
    const std::string first = machine_of(records.front());
    clocks_[first] = {rest[first].offset_ns, 0};
    rest.erase(first);
    const std::vector<Collective> collectives = rest.empty() ? std::vector<Collective>() : find_collectives(records);
    // One machine after another, the most certain one first.
    while (!rest.empty()) {
        std::optional<std::pair<std::string, Clock>> next;
        for (const auto& [machine, guess] : rest) {
            for (const auto& [known, clock] : clocks_) {
                const Bounds bounds = find_bounds(collectives, known, machine);
                if (!bounds.known() || clock.uncertainty_ns == kUnknown) continue;
                const Clock found{clock.offset_ns + bounds.middle(), clock.uncertainty_ns + bounds.width() / 2 + 1};
                if (!next || found.uncertainty_ns < next->second.uncertainty_ns) next.emplace(machine, found);
            }
        }
        if (!next) break;
        clocks_.insert(*next);
        rest.erase(next->first);
    }
    clocks_.merge(rest);
}

const Clocks::Clock& Clocks::of(const ProcessRecord& process) const {
    return clocks_.at(machine_of(process));
}

std::int64_t Clocks::uncertainty() const {
    std::int64_t most = 0;
    for (const auto& [machine, clock] : clocks_) {
        if (clock.uncertainty_ns == kUnknown) return kUnknown;
        most = std::max(most, clock.uncertainty_ns);
    }
    return most;
}

}  // namespace libddp::record
