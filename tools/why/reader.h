// Reads records: of processes that run, and of those that have ended. An event that a process was
// writing at that moment is left out.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "why/process_record.h"

namespace libddp::record {

// How much of a record to read: who reads again and again does not want the work to grow with the
// record.
struct Limits {
    std::uint64_t events = std::numeric_limits<std::uint64_t>::max();  // the newest
    // more than that is an error
    std::uint64_t fact_bytes = std::numeric_limits<std::uint64_t>::max();
};
// The last events of each rank, for a reader that must not take long.
inline constexpr Limits kLastEvents{kEvents, std::uint64_t{64} << 20};

// All records in a folder, on one clock, in the order of their names. A file that is not a record
// is named in `complaints`.
std::vector<ProcessRecord> read_records(const std::string& folder,
                                        std::vector<std::string>& complaints,
                                        const Limits& limits = {});

// Without events and facts. Throws std::runtime_error if the file is not a record.
ProcessRecord read_head(const std::string& path);
// A file like this one that has the newest events only. Empty if it would take more bytes than
// that. Throws as read_head() does.
std::string shorten_record(const std::string& path, std::uint64_t bytes);

}  // namespace libddp::record
