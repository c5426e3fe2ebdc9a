#include "why/progress.h"

#include <algorithm>
#include <vector>

namespace libddp::record {
namespace {

// A step that takes this many times as long as those before it has itself become the rate.
constexpr double kStalled = 2;

}  // namespace

Progress find_progress(const Group& group, const Position& position, std::int64_t latest_ns) {
    Progress progress;
    if (!position.context) return progress;
    std::vector<const Event*> ends;  // of steps, from the newest
    std::uint64_t bytes = 0;         // since the oldest of them
    std::uint64_t bytes_before = 0;  // of the steps, and not of the one under way
    const auto& events = position.process->events;
    for (auto event = events.rbegin(); event != events.rend(); ++event) {
        const bool old = group.now_ns - event->time_ns > latest_ns;
        if (old && ends.size() >= 2) break;
        if (event->owner == position.group->owner) {
            if (event->kind == EventKind::kOperationEnd && !ends.empty()) bytes += event->bytes;
            continue;
        }
        if (event->kind != EventKind::kStepEnd || event->owner != position.context->owner) continue;
        ends.push_back(&*event);
        bytes_before = bytes;
    }
    if (ends.size() < 2) return progress;
    const auto steps = static_cast<double>(ends.size() - 1);
    const auto took = static_cast<double>(ends.front()->time_ns - ends.back()->time_ns);
    const auto since = static_cast<double>(group.now_ns - ends.front()->time_ns);
    const bool stalled = position.life != Life::kEnded && since > kStalled * took / steps;
    const double all = std::max(1.0, stalled ? took + since : took);
    progress.step_ns = all / steps;
    progress.bytes_per_second = static_cast<double>(bytes_before) / all * 1e9;
    progress.samples_per_second =
        static_cast<double>(position.process->workload.samples) / progress.step_ns * 1e9;
    const std::int64_t done = ends.front()->step + 1;
    if (position.process->workload.steps > done)
        progress.left_ns =
            static_cast<double>(position.process->workload.steps - done) * progress.step_ns;
    return progress;
}

}  // namespace libddp::record
