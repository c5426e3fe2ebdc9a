// The rank that is late, step by step: from the times at which ranks come to collectives. The last
// one to come makes all others wait; the wait of the others is not their fault.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "why/position.h"

namespace libddp::record {

// The times of one rank, in nanoseconds of an average step.
struct Lateness {
    std::int32_t rank = 0;
    // how long the others would not have waited if it had come with the last but one
    double late = 0;
    // the part of that in which it was in its communication hook; the rest is its own code
    double in_hook = 0;
    double waits = 0;     // how long it waits for the last rank
    double transfer = 0;  // from the arrival of the last rank to the end of the collective
    double exposed = 0;   // the part of that in which it had nothing else to do
};

// Sums over the collectives of one step, in nanoseconds. Each vector has a value for each rank.
struct StepLateness {
    std::int64_t step = -1;
    std::int64_t begin_ns = 0;  // when rank 0 came to its first collective, on the clock of Group
    std::uint64_t bytes = 0;    // that a rank gives to collectives
    std::int64_t operations = 0;
    std::vector<double> late, in_hook, waits, transfer, exposed;  // as in Lateness
    // how much later than the first rank it came
    std::vector<double> behind;
};

// The steps that the records of all ranks hold; empty if a rank has no record. The first step and
// the last may be incomplete.
std::vector<StepLateness> find_steps(const Group& group);

struct Pace {
    std::int64_t steps = 0;   // that the records of all ranks cover
    double step = 0;          // nanoseconds of an average one
    std::uint64_t bytes = 0;  // that a rank gives to collectives in one
    std::vector<Lateness> ranks;
    // the rank that is late in a way that chance does not explain
    std::optional<std::int32_t> slow;
    // about that rank, or about collectives that take most of a step; "": neither
    std::string sentence;
};

inline constexpr std::int64_t kLeastSteps = 10;

// latest_ns: only the steps of this time count, but no fewer than kLeastSteps. Empty if the records
// do not share so many.
std::optional<Pace> find_pace(const Group& group,
                              std::int64_t latest_ns = std::numeric_limits<std::int64_t>::max());

}  // namespace libddp::record
