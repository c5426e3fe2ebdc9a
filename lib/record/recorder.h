// Writes the record of this process: what its groups and contexts did last, in a file that outlives
// the process. Tools read it (tools/why/reader.h). Writing an event takes no lock, allocates
// nothing and calls no system function.
//
// DDP_RECORD names the folder for the file. Without it nothing is recorded. Where the file cannot
// be made a warning says so, and the program goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "record/layout.h"
#include "util/error.h"

namespace libddp::record {

class Record;

// The part of an event that the caller gives. The recorder fills in the rest.
struct Entry {
    EventKind kind;
    std::int64_t step = -1;
    std::int32_t bucket = -1;
    std::uint64_t bytes = 0;
    std::int64_t sequence = 0;
    std::int32_t detail = 0;
    std::int64_t since_ns = 0;
    std::int32_t param = -1;
    std::int64_t time_ns = 0;  // 0: now
};

inline std::int64_t to_ns(std::chrono::steady_clock::time_point at) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}
inline std::int64_t now_ns() {
    return to_ns(std::chrono::steady_clock::now());
}

// Writes events of a group or a context. A default one writes nothing. A copy writes for the same
// group or context.
class Recorder {
public:
    Recorder() = default;

    static Recorder of_group(std::int32_t rank, std::int32_t world, std::string_view name,
                             std::string_view key, std::string_view backend);
    // The context uses the group of this recorder. announced: a place for each parameter; null if
    // nothing is recorded.
    Recorder of_context(const std::vector<std::string>& params, AnnouncedStep*& announced) const;

    explicit operator bool() const { return record_ != nullptr; }
    void write(const Entry& entry) const noexcept;
    // The buckets of a context, each with the ids of its parameters.
    void plan(const std::vector<std::vector<std::int32_t>>& buckets) const;
    // Writes the verdict that broke a group.
    void broken(const ErrorInfo& verdict) const;
    // All ranks are connected. An exit of the process is recorded from now on.
    void joined() const noexcept;
    // The process runs. first: nobody has said so for a while, which means nothing.
    void beat(bool first) const noexcept;
    // A fact for each connection of a group, with the rank filled in; null if nothing is recorded.
    PeerFact* peers(const std::vector<std::int32_t>& ranks) const;

private:
    Recorder(Record* record, Totals* totals, std::uint16_t owner)
        : record_(record), totals_(totals), owner_(owner) {}

    Record* record_ = nullptr;
    Totals* totals_ = nullptr;  // of the group, in the record
    std::uint16_t owner_ = 0;
};

// A backend knows of its group only what ddp_backend_host says. While it connects, it finds here,
// on its thread, where to record its connections. Scopes nest.
class Connecting {
public:
    explicit Connecting(const Recorder& of_group);
    // A part of the group connects, and numbers its ranks from 0. ranks: their numbers in the
    // group.
    explicit Connecting(std::vector<std::int32_t> ranks);
    ~Connecting();
    Connecting(const Connecting&) = delete;
    Connecting& operator=(const Connecting&) = delete;

    // As Recorder::peers(). ranks: as the part that connects numbers them.
    static PeerFact* peers(std::vector<std::int32_t> ranks);

private:
    const Connecting* const outer_;
    const Recorder recorder_;
    const std::vector<std::int32_t> ranks_;  // empty: those of the group
};

// Marks of the program, which nest on each thread.
void mark_begin(std::string_view name);
void mark_end();

// A call has failed.
void note_failure(const ErrorInfo& error) noexcept;

// How much work there is; 0: unknown.
void set_workload(std::int64_t samples, std::int64_t steps);

}  // namespace libddp::record
