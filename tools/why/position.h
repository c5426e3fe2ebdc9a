// Where each rank of a group is, from the records of its processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "why/process_record.h"
#include "why/sights.h"

namespace libddp::record {

enum class Life {
    kUnknown,  // of another machine
    kRuns,
    kStopped,  // by SIGSTOP, or by a debugger
    kEnded,
};

// An operation that a rank has begun and not ended.
struct Underway {
    std::int64_t sequence = 0, since_ns = 0, step = -1;
    std::int32_t bucket = -1, detail = 0;
    std::uint64_t bytes = 0;
};

struct Position {
    enum class At {
        kJoining,    // waits for the ranks of the group
        kProgram,    // in the program's own code, between steps
        kBackward,   // between the first gradient of a step and ddp_finalize
        kHook,       // in the communication hook of a bucket
        kFinalize,   // in ddp_finalize, or between ddp_finalize_async and that
        kOperation,  // in an operation outside a step
        kLeft,       // has freed the group
    };

    std::int32_t rank = 0;
    const ProcessRecord* process = nullptr;
    const GroupRecord* group = nullptr;
    const ContextRecord* context = nullptr;  // the one that did something last; null: none did
    Life life = Life::kUnknown;
    std::string ending;   // how it ended, if the launcher saw it
    std::string words;    // the last line that it wrote to stderr, if the launcher saw it
    bool killed = false;  // by a signal
    bool exits = false;   // by itself, before it has freed the group
    std::int32_t exit_status = 0;
    const Failure* failure =
        nullptr;  // the last error that the program got, until Group::now_ns; null: none
    // For how long none of its threads has run at Group::now_ns; 0: they ran.
    std::int64_t still_ns = 0;
    bool moved_on = false;  // it has freed the group, if only after Group::now_ns
    At at = At::kJoining;
    std::int64_t since_ns = 0;  // since when it is there
    std::int64_t step = -1;     // of the context; at kProgram the last that ended, -1: none
    std::int32_t bucket = -1;   // at kHook
    std::optional<Underway> underway;
    std::int64_t begun = 0;                   // how many operations of the group it has begun
    std::int64_t last_ns = 0;                 // its last event
    std::size_t announced = 0, expected = 0;  // gradients of the step under way
    std::vector<std::string> missing;         // the rest, by name
};

// One group as its ranks have recorded it. Times are in nanoseconds on one clock of all hosts, as
// far as their clocks agree.
struct Group {
    std::string name, backend;
    std::int32_t world = 1;
    // When the group broke; otherwise when the records were read, or what came last if no process
    // runs any more. Positions are those of this time.
    std::int64_t now_ns = 0;
    std::vector<Position>
        // the ranks that have a record, in their order. A few bytes of a file can claim very many
        // others
        recorded;
    std::optional<Verdict> verdict;  // as the first rank met it

    // Null: it has no record.
    const Position* find(std::int32_t rank) const;
    bool is_whole() const { return recorded.size() == static_cast<std::size_t>(world); }
};

// The first and the last of neighbours that have no record.
using RankRange = std::pair<std::int32_t, std::int32_t>;
std::vector<RankRange> absent_ranks(const Group& group);
std::int32_t count_of(const std::vector<RankRange>& ranges);

// All groups of at least so many ranks. The records must outlive the result.
std::vector<Group> find_groups(const std::vector<ProcessRecord>& records,
                               const std::vector<Sight>& sights, std::int32_t least_world = 2);

// All that were in it have freed it or ended, and somebody has freed it: who died in it has been
// left behind.
bool is_over(const Group& group);

// "bucket 5 of step 41", "an allreduce of the program".
std::string describe(const Underway& operation);
// "in the backward pass of step 41 for 4.2 s, after 9 of 14 gradients; ..."
std::string describe(const Group& group, const Position& position);
// "4.2 s", "37 ms".
std::string duration_text(double ns);
// "1.3 MB", "12 bytes".
std::string bytes_text(double bytes);
// "rank 2", "ranks 0, 1 and 3".
std::string ranks_text(const std::vector<std::int32_t>& ranks);
std::string ranges_text(const std::vector<RankRange>& ranges);

}  // namespace libddp::record
