// How a loop is timed on all ranks together.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace bench {

// Runs one iteration and returns how many milliseconds of it count.
using Iteration = std::function<double()>;

struct Budget {
    std::int64_t iterations;  // 0: as many as fit into `seconds`, at least 10
    double seconds;           // of all loops together
};

// The exchanges between ranks while they measure. Each function is collective.
struct Ranks {
    std::function<void()> barrier;
    std::function<void(std::int64_t&)> broadcast;  // rank 0's value to all
    // the largest of all ranks, element by element
    std::function<void(std::vector<double>&)> maximum_of;
};

// How often each loop runs before it counts: the first step's buckets are rebuilt in the second;
// the third is like all later ones.
constexpr std::int64_t kWarmUp = 3;

// Times several loops side by side and returns a series for each: of every iteration the slowest
// rank's time, since a job is as fast as that. The loops take turns in blocks, with a barrier
// before each, so that whatever else the machine does meets all of them alike. Collective: rank 0
// decides how many iterations there are.
std::vector<std::vector<double>> measure(const Ranks& ranks, const Budget& budget,
                                         const std::vector<Iteration>& loops);

// The values that a loop has noted itself in each iteration, without the iterations that do not
// count.
std::vector<double> counted(const std::vector<double>& noted);

// Milliseconds on a clock that only goes forward.
double now_ms();

}  // namespace bench
