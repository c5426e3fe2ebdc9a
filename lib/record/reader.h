// Reads records: of processes that run, and of those that have ended. An event that a process was writing at that moment is left out.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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

// The bytes that one rank has sent to another over all connections with it. stuck_since_ns: of the one that is stuck
// longest.
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

struct ProcessRecord {
    std::string path, host, host_id;
    std::int32_t pid = 0, launch_rank = -1;
    std::uint64_t started = 0;
    std::int64_t opened_monotonic_ns = 0, opened_realtime_ns = 0;
    std::int64_t alive_ns = 0, samples = 0, steps = 0;  // as in Head
    // The offset that was added to its times, so that those of all processes are on one clock, which counts from 1970;
    // and how far that may be wrong (record/clocks.h).
    std::int64_t offset_ns = 0, uncertainty_ns = 0;
    std::uint64_t lost = 0;     // events that newer ones have taken the place of
    std::vector<Event> events;  // in order
    std::vector<GroupRecord> groups;
    std::vector<ContextRecord> contexts;
    std::map<std::uint32_t, std::string> marks;
    std::optional<Failure> failure;

    const GroupRecord* group(std::uint16_t owner) const;
    const std::string& mark(std::int64_t id) const;  // "?": none has this number
};

// The contexts of one group, for who goes through all events of a process: in a long elastic job it has very many contexts.
class ContextsOfGroup {
public:
    ContextsOfGroup(const ProcessRecord& process, const GroupRecord& group);
    const ContextRecord* find(std::uint16_t owner) const;  // null: the owner is none of them

private:
    std::unordered_map<std::uint16_t, const ContextRecord*> contexts_;
};

// The launcher's view of the process of a rank.
struct Sight {
    enum class Kind { kExited, kKilled, kStopped };

    std::int32_t launch_rank = 0;
    Kind kind = Kind::kExited;
    std::string text;              // "was killed by signal 9 (SIGKILL)"
    std::string words{};           // the last line that it wrote to stderr
    std::int64_t realtime_ns = 0;  // when, by the system's clock; 0: unknown, and the rank has had one process
};

// Adds to what was seen. Returns why it could not; "": it has. The records are there without it.
std::string add_sight(const std::string& folder, const Sight& sight);
// The sights of one host in the order in which they were seen.
std::vector<Sight> read_sights(const std::string& folder);
// Removes what an earlier job of this host has left in the folder.
void forget_earlier(const std::string& folder);
// Removes all records, and what was seen.
void forget_all(const std::string& folder);
// Removes the records of processes of this rank that began before this time of the system's clock.
void forget_before(const std::string& folder, std::int32_t launch_rank, std::int64_t realtime_ns);

// All records of the folder, each with its newest events and all its facts, and what was seen, for a folder on another host. A record
// that would take more than bytes_each is left out.
std::string pack_records(const std::string& folder, std::uint64_t bytes_each);
// Adds what was packed, but for what the folder has already. Throws std::runtime_error if it is damaged, or cannot be
// written.
void unpack_records(const std::string& folder, std::string_view packed);

// Throws std::runtime_error if the file is not a record.
ProcessRecord parse_record(std::string_view bytes, const std::string& path);

// How much of a record to read: who reads again and again does not want the work to grow with the record.
struct Limits {
    std::uint64_t events = std::numeric_limits<std::uint64_t>::max();      // the newest
    std::uint64_t fact_bytes = std::numeric_limits<std::uint64_t>::max();  // more than that is an error
};

// All records in a folder, on one clock, in the order of their names. A file that is not a record is named in `complaints`.
std::vector<ProcessRecord> read_records(const std::string& folder, std::vector<std::string>& complaints,
                                        const Limits& limits = {});

}  // namespace libddp::record
