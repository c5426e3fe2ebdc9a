// The record of one process, as it was read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "record/layout.h"

namespace libddp::record {

struct Verdict {
    std::int32_t status = 0, rank = -1, param = -1, bucket = -1;
    std::int64_t step = -1;
    std::string message;
};

// The last error that libddp returned to the program.
struct Failure : Verdict {
    std::int64_t time_ns = 0;
};

// The bytes that one rank has sent to another over all connections with it. stuck_since_ns: of the
// one that is stuck longest.
using Peer = PeerFact;

// One rank's part in a group.
struct GroupRecord {
    std::uint16_t owner = 0;
    std::int32_t rank = 0, world = 1;
    std::string name, key, backend;
    std::int64_t created_ns = 0;
    Totals totals{};
    std::vector<Verdict> verdicts;
    std::vector<Peer> peers;
};

struct ContextRecord {
    std::uint16_t owner = 0, group = 0;
    std::shared_ptr<const std::vector<std::string>> params;  // contexts may share their names
    std::vector<AnnouncedStep> announced;
    std::vector<std::vector<std::int32_t>> buckets;  // of the newest plan
};

// The facts that tell one process from all others. A pid may be used again, so the kernel's time of
// its start is one.
struct Identity {
    std::string host, host_id;
    std::int32_t pid = 0, launch_rank = -1;
    std::uint64_t started = 0;
};

// The offset that was added to the times of a process, so that those of all processes are on one
// clock, which counts from 1970; and how far that may be wrong (clocks.h).
struct Clock {
    static constexpr std::int64_t kUnknown = -1;

    std::int64_t offset_ns = 0, uncertainty_ns = kUnknown;
};

// As the program says it; 0: unknown.
struct Workload {
    std::int64_t samples = 0, steps = 0;  // of a step, and of the whole run
};

struct ProcessRecord {
    std::string path;
    Identity identity;
    std::int64_t opened_monotonic_ns = 0, opened_realtime_ns = 0, alive_ns = 0;  // as in Head
    Clock clock;
    Workload workload;
    std::uint64_t lost = 0;     // events that newer ones have taken the place of
    std::vector<Event> events;  // in order
    std::vector<GroupRecord> groups;
    std::vector<ContextRecord> contexts;
    std::map<std::uint32_t, std::string> marks;
    std::optional<Failure> failure;

    const GroupRecord* group(std::uint16_t owner) const;
    const std::string& mark(std::int64_t id) const;  // "?": none has this number
};

// The contexts of one group, for who goes through all events of a process: in a long elastic job it
// has very many contexts.
class ContextsOfGroup {
public:
    ContextsOfGroup(const ProcessRecord& process, const GroupRecord& group);
    const ContextRecord* find(std::uint16_t owner) const;  // null: the owner is none of them

private:
    std::unordered_map<std::uint16_t, const ContextRecord*> contexts_;
};

}  // namespace libddp::record
