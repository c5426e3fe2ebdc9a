// The file of a record: blocks of whole pages, one after another. The first holds the head and the
// ring of events. Each other block holds one fact, which is added when a group or a context is made
// and stays. All numbers are in the byte order of the host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace libddp::record {

inline constexpr char kMagic[8] = {'d', 'd', 'p', 'r', 'e', 'c', '2', '\n'};
inline constexpr std::size_t kPage = 4096;
inline constexpr std::uint64_t kEvents = 16384;  // unless DDP_RECORD_EVENTS says otherwise
inline constexpr const char* kSuffix = ".record";
inline constexpr std::chrono::milliseconds kHeartbeat{250};
// One of several heartbeats comes in time, even where the machine has much to do.
inline constexpr std::int64_t kStandstillNs = 4 * std::chrono::nanoseconds(kHeartbeat).count();

// Times are in nanoseconds of CLOCK_MONOTONIC. A field that a kind does not mention is 0, or -1 for
// bucket, step and param.
enum class EventKind : std::uint16_t {
    kNone,
    // Events of a group.
    kJoined,          // all ranks are connected
    kOperationBegin,  // sequence, bucket, step, bytes, detail: collective, purpose
    kOperationEnd,    // the same, since its begin; param: the status
    kBroken,          // detail: the status; the fact kVerdict says more
    kLeft,            // this rank has freed the group
    // Events of a context.
    // its first gradient; step, bytes: samples that are this rank's share of the global batch,
    // detail: 1 if the step is synced
    kStepBegin,
    kLaunch,       // bucket, step, bytes
    kHookEnd,      // the hook has returned, since its call; bucket, step
    kBackwardEnd,  // the program has called ddp_finalize or ddp_finalize_async; step
    kStepEnd,      // step, detail as for kStepBegin
    // Events of the process.
    kMarkBegin,   // sequence: of the fact kMark; param: the thread
    kMarkEnd,     // param: the thread
    kStoodStill,  // no thread has run since
    kExit,        // it exits; detail: its status
    // Events of a context.
    kHookBegin,  // the hook is called; bucket, step
};

struct Event {
    std::uint64_t number;  // counted from 1 over all events of the process. 0: it is being written
    std::int64_t time_ns, since_ns;
    std::int64_t step, sequence;
    std::uint64_t bytes;
    EventKind kind;
    std::uint16_t owner;  // the group or context; 0: the process
    std::int32_t bucket, param, detail;
};
static_assert(sizeof(Event) == 64);

// The detail of an operation.
constexpr std::int32_t operation_detail(std::int32_t collective, std::int32_t purpose) {
    return collective << 16 | purpose;
}
constexpr std::int32_t collective_of(std::int32_t detail) {
    return detail >> 16;
}
constexpr std::int32_t purpose_of(std::int32_t detail) {
    return detail & 0xffff;
}

struct Head {
    char magic[8];
    std::uint64_t events;   // the length of the ring, which begins at the second page
    std::uint64_t written;  // how many events have been begun: atomic
    std::int32_t pid;
    std::int32_t launch_rank;  // DDP_RANK, which a launcher has set; -1: none
    // when the process began, as the kernel counts: a pid may be used again
    std::uint64_t started;
    std::int64_t opened_monotonic_ns, opened_realtime_ns;
    // a thread of libddp writes the time each kHeartbeat; 0: there is none yet
    std::int64_t alive_ns;
    // of a step, and of the whole run, as the program says; 0: unknown
    std::int64_t samples, steps;
    char host_id[192];  // util/host.h
    char host[64];
};
static_assert(sizeof(Head) <= kPage);

enum class FactKind : std::uint32_t {
    kGroup = 1,  // GroupFact; then its name, its key, and the backend's name, each ended by a 0
    // ContextFact; then an AnnouncedStep for each parameter; then their names, each ended by a 0
    kContext,
    // of a context: for each bucket the number of its parameters and their ids, as int32
    kPlan,
    kVerdict,  // of a group: VerdictFact and the message
    kMark,     // owner: its number; the name
    kPeers,    // of a group: a PeerFact for each connection with another rank
    kFailure,  // FailureFact and a message, in a block that later ones overwrite
    // as kContext, but instead of the names the owner of an earlier context that has the same, as
    // int32
    kContextAgain,
};

struct FactHead {
    char magic[8];
    std::uint64_t block_bytes;  // of the whole block
    std::uint64_t bytes;        // of the fact, which follows
    FactKind kind;
    std::uint32_t owner;
};

// The counts of a rank in a group since it joined. They only grow: events are lost when the ring
// has gone round. All are atomic.
struct Totals {
    std::int64_t joined_ns;             // when it joined; 0: it has not
    std::int64_t left_ns;               // when it freed the group; 0: it has not
    std::uint64_t steps, synced_steps;  // that have ended, of all contexts of the group
    std::uint64_t operations, bytes,
        operation_ns;  // collectives that have ended: their size, and the time from begin to end
};
struct GroupFact {
    std::int32_t rank, world;
    std::int64_t created_ns;
    Totals totals;
};
struct ContextFact {
    std::int32_t group, params;
};
struct VerdictFact {
    std::int32_t status, rank, param, bucket;
    std::int64_t step;
};
// The last error that libddp returned to the program.
struct FailureFact {
    std::int64_t time_ns;  // 0: it is being written
    VerdictFact error;
};
inline constexpr std::size_t kFailureBytes = 2048;  // with the message, which ends with a 0

// A connection as the kernel that sends counts it. The backend writes it again and again, each
// number atomically.
struct PeerFact {
    std::int32_t rank;      // the other one, as the group numbers it
    std::uint32_t resent;   // packets
    std::uint64_t arrived;  // bytes that the other host has acknowledged
    // bytes that this rank has sent and the other host has not acknowledged
    std::uint64_t waiting;
    std::int64_t stuck_since_ns;  // since when none of those has arrived; 0: none waits
    std::int64_t busy_ns;         // for how long there were such bytes
    std::int64_t unread_ns;       // the part of that in which the other rank did not read
};
// The last step for which the program announced the gradient completely, plus 1.
using AnnouncedStep = std::uint32_t;

}  // namespace libddp::record
