#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "handles.h"

namespace bench {
namespace {

constexpr std::int64_t kWarmUp =
    3;  // the first step's buckets are rebuilt in the second; the third is like all later ones
constexpr std::int64_t kFewest = 10;
constexpr std::int64_t kMost = 20000;
constexpr std::int64_t kTurns = 5;

void barrier(ddp_group* group) {
    Result result;
    result.check(ddp_barrier(group, nullptr, result));
}

// Returns what an iteration of all loops takes, by this rank's last one.
double warm_up(ddp_group* group, const std::vector<Iteration>& loops) {
    double last = 0;
    for (const Iteration& loop : loops) {
        barrier(group);
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
std::int64_t agree(ddp_group* group, const Budget& budget, double milliseconds) {
    const double fit = 1e3 * budget.seconds / std::max(milliseconds, 1e-6);
    std::int64_t count = static_cast<std::int64_t>(std::clamp(fit, double{kFewest}, double{kMost}));
    if (budget.iterations > 0) count = budget.iterations;
    Result result;
    result.check(ddp_broadcast(group, &count, 1, DDP_I64, 0, nullptr, result));
    return count;
}

}  // namespace

double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::vector<double>> measure(ddp_group* group, const Budget& budget, const std::vector<Iteration>& loops) {
    const std::int64_t count = agree(group, budget, warm_up(group, loops));
    std::vector<std::vector<double>> series(loops.size());
    for (std::int64_t turn = 0; turn < kTurns; ++turn) {
        const std::int64_t share = count * (turn + 1) / kTurns - count * turn / kTurns;
        for (std::size_t i = 0; i < loops.size(); ++i) {
            barrier(group);
            for (std::int64_t n = 0; n < share; ++n) series[i].push_back(loops[i]());
        }
    }
    for (std::vector<double>& times : series) {
        Result result;
        result.check(ddp_allreduce(group, nullptr, times.data(), times.size(), DDP_F64, DDP_MAX, nullptr, result));
    }
    return series;
}

}  // namespace bench
