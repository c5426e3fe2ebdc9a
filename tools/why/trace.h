// One timeline of all ranks: a file for Perfetto and chrome://tracing.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "why/position.h"

namespace why {

// Which steps a trace shows: both ends belong to it. By default it shows all that the records hold.
struct Steps {
    std::int64_t first = 0;
    std::int64_t last = std::numeric_limits<std::int64_t>::max();

    bool operator==(const Steps&) const = default;
};

// "3-7" or "5". Throws std::invalid_argument.
Steps parse_steps(const std::string& text);

// Writes the trace in the Trace Event Format. Each rank is a process of the trace with rows for its
// marks, steps, hooks and collectives; arrows join the same collective on all ranks. Throws
// std::runtime_error if the file cannot be written, or if no step is to be shown.
void write_trace(const std::string& path, const std::vector<libddp::record::ProcessRecord>& records,
                 const std::vector<libddp::record::Group>& groups, const Steps& steps);

}  // namespace why
