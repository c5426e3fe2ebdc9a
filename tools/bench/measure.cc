#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace bench {
namespace {

constexpr std::int64_t kFewest = 10;
constexpr std::int64_t kMost = 20000;
constexpr std::int64_t kTurns = 5;

// Returns what an iteration of all loops takes, by this rank's last one.
double warm_up(const Ranks& ranks, const std::vector<Iteration>& loops) {
    double last = 0;
    for (const Iteration& loop : loops) {
        ranks.barrier();
        double start = 0;
        for (std::int64_t i = 0; i < kWarmUp; ++i) {
            start = now_ms();
            loop();
        }
        last += now_ms() - start;
    }
    return last;
}

// Ranks measure different times, but all must run as many iterations.
std::int64_t agree(const Ranks& ranks, const Budget& budget, double milliseconds) {
    const double fit = 1e3 * budget.seconds / std::max(milliseconds, 1e-6);
    std::int64_t count = static_cast<std::int64_t>(std::clamp(fit, double{kFewest}, double{kMost}));
    if (budget.iterations > 0) count = budget.iterations;
    ranks.broadcast(count);
    return count;
}

}  // namespace

std::vector<double> counted(const std::vector<double>& noted) {
    const auto dropped = std::min(noted.size(), std::size_t{kWarmUp});
    return {noted.begin() + static_cast<std::ptrdiff_t>(dropped), noted.end()};
}

double now_ms() {
    return std::chrono::duration<double, std::milli>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::vector<std::vector<double>> measure(const Ranks& ranks, const Budget& budget,
                                         const std::vector<Iteration>& loops) {
    const std::int64_t count = agree(ranks, budget, warm_up(ranks, loops));
    std::vector<std::vector<double>> series(loops.size());
    for (std::int64_t turn = 0; turn < kTurns; ++turn) {
        const std::int64_t share = count * (turn + 1) / kTurns - count * turn / kTurns;
        for (std::size_t i = 0; i < loops.size(); ++i) {
            ranks.barrier();
            for (std::int64_t n = 0; n < share; ++n) series[i].push_back(loops[i]());
        }
    }
    for (std::vector<double>& times : series) ranks.maximum_of(times);
    return series;
}

}  // namespace bench
