#include "why/clocks.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "ddp/backend.h"

namespace libddp::record {
namespace {

constexpr std::int64_t kFarAway = std::numeric_limits<std::int64_t>::max() / 4;

// Processes of one boot of a machine have one monotonic clock. The boot is the first word, unless
// DDP_HOST_ID is set.
std::string machine_of(const ProcessRecord& process) {
    const bool given = process.identity.host_id.starts_with("given ");
    return given ? process.identity.host_id + ' ' + process.identity.host
                 : process.identity.host_id.substr(0, process.identity.host_id.find(' '));
}

// The ranks of one machine in one collective: when the last of them began it, and when the first of
// them ended it.
struct Times {
    std::int64_t last_begin = -kFarAway, first_end = kFarAway;
};
using Collective = std::map<std::string, Times>;  // by machine

// Whether every rank needs something from every other one.
bool joins_all(std::int32_t kind) {
    return kind == DDP_COLLECTIVE_ALLREDUCE || kind == DDP_COLLECTIVE_ALLGATHER ||
           kind == DDP_COLLECTIVE_REDUCE_SCATTER || kind == DDP_COLLECTIVE_BARRIER ||
           kind == DDP_COLLECTIVE_ALL_TO_ALL;
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
            const std::string key =
                group->name + '\n' + group->key + '\n' + std::to_string(event.sequence);
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

// The time to add to those of machine b to compare them with those of a: no less than `least`, no
// more than `most`.
struct Bounds {
    std::int64_t least = -kFarAway, most = kFarAway;

    bool known() const { return least > -kFarAway && most < kFarAway; }
    std::int64_t middle() const { return least + (most - least) / 2; }
    // Clocks that drift apart make the bounds cross.
    std::int64_t width() const { return std::abs(most - least); }
};

Bounds find_bounds(const std::vector<Collective>& collectives, const std::string& a,
                   const std::string& b) {
    Bounds bounds;
    for (const Collective& collective : collectives) {
        const auto at_a = collective.find(a), at_b = collective.find(b);
        if (at_a == collective.end() || at_b == collective.end()) continue;
        bounds.most = std::min(bounds.most, at_a->second.first_end - at_b->second.last_begin);
        bounds.least = std::max(bounds.least, at_a->second.last_begin - at_b->second.first_end);
    }
    return bounds;
}

using Clocks = std::map<std::string, Clock>;  // by machine

// The clock of this machine, from the clocks of other machines.
std::optional<Clock> find_clock(const std::string& machine, const Clocks& known,
                                const std::vector<Collective>& collectives) {
    std::optional<Clock> best;
    for (const auto& [other, clock] : known) {
        const Bounds bounds = find_bounds(collectives, other, machine);
        if (!bounds.known()) continue;
        const Clock found{clock.offset_ns + bounds.middle(),
                          clock.uncertainty_ns + bounds.width() / 2 + 1};
        if (!best || found.uncertainty_ns < best->uncertainty_ns) best = found;
    }
    return best;
}

// Takes the machines whose clocks can be found out of `rest`, one after another, the most certain
// one first.
Clocks find_clocks(const std::string& first, Clocks& rest,
                   const std::vector<Collective>& collectives) {
    Clocks known{{first, {rest[first].offset_ns, 0}}};
    rest.erase(first);
    while (!rest.empty()) {
        std::optional<std::pair<std::string, Clock>> next;
        for (const auto& [machine, guess] : rest) {
            const auto found = find_clock(machine, known, collectives);
            if (found && (!next || found->uncertainty_ns < next->second.uncertainty_ns))
                next.emplace(machine, *found);
        }
        if (!next) break;
        known.insert(*next);
        rest.erase(next->first);
    }
    return known;
}

// 0 stands for no time.
void move(std::int64_t& time, std::int64_t by) {
    if (time != 0) time += by;
}

void move_times(ProcessRecord& process, std::int64_t by) {
    for (std::int64_t* time : {&process.opened_monotonic_ns, &process.alive_ns}) move(*time, by);
    if (process.failure) move(process.failure->time_ns, by);
    for (Event& event : process.events)
        for (std::int64_t* time : {&event.time_ns, &event.since_ns}) move(*time, by);
    for (GroupRecord& group : process.groups) {
        for (std::int64_t* time :
             {&group.created_ns, &group.totals.joined_ns, &group.totals.left_ns})
            move(*time, by);
        for (Peer& peer : group.peers) move(peer.stuck_since_ns, by);
    }
}

}  // namespace

void align_clocks(std::vector<ProcessRecord>& records) {
    if (records.empty()) return;
    Clocks rest;
    for (const ProcessRecord& process : records)
        rest.try_emplace(machine_of(process), Clock{.offset_ns = process.opened_realtime_ns -
                                                                 process.opened_monotonic_ns});
    Clocks clocks =
        find_clocks(machine_of(records.front()), rest,
                    rest.size() > 1 ? find_collectives(records) : std::vector<Collective>());
    clocks.merge(rest);
    for (ProcessRecord& process : records) {
        process.clock = clocks.at(machine_of(process));
        move_times(process, process.clock.offset_ns);
    }
}

}  // namespace libddp::record
