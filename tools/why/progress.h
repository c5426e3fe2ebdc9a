// How far a rank has come and how fast it is, from its record alone: the records of other ranks may
// lie on another machine.
#pragma once

#include <cstdint>

#include "why/position.h"

namespace libddp::record {

struct Progress {
    // from the end of a step to the end of the next, lately; 0: unknown
    double step_ns = 0;
    double samples_per_second = 0;  // 0: unknown; so are the next two
    double bytes_per_second = 0;    // in collectives
    double left_ns = 0;             // until the run has all its steps
};

// latest_ns: what is older does not count, except that two steps are needed.
Progress find_progress(const Group& group, const Position& position, std::int64_t latest_ns);

}  // namespace libddp::record
