#include "why/lateness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "util/error.h"
#include "why/connections.h"
#include "why/span.h"

namespace libddp::record {
namespace {

// A rank is slow if its lateness is this many times the standard error of its mean, and more for
// few steps, whose error is not well known; and if it is this part of a step and this long. The
// order in which the kernel wakes ranks makes less of a difference.
constexpr double kCertain = 6;
constexpr double kFewSteps = 10;
constexpr std::size_t kCutOff = 10;  // one of so many, at either end
constexpr double kWorthSaying = 0.02;
constexpr double kWorthSayingNs = 300'000;
// Collectives are worth a sentence if ranks wait for them for most of a step, and if that is not
// the time of short messages and of waking up: by the bytes of a step, or by the time of a
// collective.
constexpr double kMostOfStep = 0.5;
constexpr std::uint64_t kManyBytes = 1 << 20;
constexpr double kLongOperationNs = 20'000'000;

struct Operation : Span {
    std::int64_t step = -1;
    std::int32_t bucket = -1;
    std::uint64_t bytes = 0;
};

// The record of one rank, by the number of the operation.
struct Run {
    std::map<std::int64_t, Operation> operations;
    std::vector<Span> hooks;
    std::vector<Span> finalizes;  // from the end of the backward pass to the end of the step
};

Run run_of(const Position& position, std::int64_t until_ns) {
    Run run;
    const ContextsOfGroup contexts(*position.process, *position.group);
    std::int64_t closed = 0;
    for (const Event& event : position.process->events) {
        const std::int64_t at = event.time_ns;
        if (at > until_ns) break;
        if (event.owner == position.group->owner && event.kind == EventKind::kOperationEnd) {
            Operation operation;
            operation.begin = event.since_ns;
            operation.end = at;
            operation.step = event.step;
            operation.bucket = event.bucket;
            operation.bytes = event.bytes;
            run.operations[event.sequence] = operation;
            continue;
        }
        if (!contexts.find(event.owner)) continue;
        if (event.kind == EventKind::kHookEnd) run.hooks.push_back({event.since_ns, at});
        if (event.kind == EventKind::kBackwardEnd) closed = at;
        if (event.kind == EventKind::kStepEnd && closed != 0)
            run.finalizes.push_back({std::exchange(closed, 0), at});
    }
    return run;
}

double overlap(const std::vector<Span>& spans, const Span& with) {
    std::int64_t sum = 0;
    for (const Span& span : spans) sum += overlap(span, with);
    return static_cast<double>(sum);
}

double length(const Span& span) {
    return static_cast<double>(span.end - span.begin);
}

// How much longer this rank took for its own work than each other did: since the collective before,
// which need not end at the same time on all.
std::int64_t more_work(const std::vector<Run>& runs, std::int64_t sequence, std::size_t of) {
    std::int64_t own = 0, others = 0;
    for (std::size_t rank = 0; rank < runs.size(); ++rank) {
        const auto& operations = runs[rank].operations;
        const auto before = operations.find(sequence - 1);
        if (before == operations.end()) return std::numeric_limits<std::int64_t>::max();
        const std::int64_t work = operations.at(sequence).begin - before->second.end;
        if (rank == of)
            own = work;
        else
            others = std::max(others, work);
    }
    return std::max<std::int64_t>(0, own - others);
}

void add_operation(StepLateness& step, const std::vector<Run>& runs, std::int64_t sequence) {
    std::vector<std::int64_t> came;
    for (const Run& run : runs) came.push_back(run.operations.at(sequence).begin);
    const auto last =
        static_cast<std::size_t>(std::max_element(came.begin(), came.end()) - came.begin());
    const std::int64_t first = *std::min_element(came.begin(), came.end());
    std::int64_t before = came[last == 0 ? 1 : 0];  // the last but one
    for (std::size_t rank = 0; rank < came.size(); ++rank)
        if (rank != last) before = std::max(before, came[rank]);
    const std::int64_t late = std::min(came[last] - before, more_work(runs, sequence, last));
    step.late[last] += static_cast<double>(late);
    step.in_hook[last] +=
        std::min(static_cast<double>(late), overlap(runs[last].hooks, {before, came[last]}));
    for (std::size_t rank = 0; rank < came.size(); ++rank) {
        step.waits[rank] += static_cast<double>(came[last] - came[rank]);
        step.behind[rank] += static_cast<double>(came[rank] - first);
        const Operation& operation = runs[rank].operations.at(sequence);
        const Span transfer{came[last], std::max(came[last], operation.end)};
        step.transfer[rank] += length(transfer);
        // The program waits at once for an operation that belongs to no bucket.
        step.exposed[rank] +=
            operation.bucket < 0 ? length(transfer) : overlap(runs[rank].finalizes, transfer);
    }
    ++step.operations;
}

StepLateness new_step(std::size_t ranks, const Operation& first) {
    StepLateness step;
    step.step = first.step;
    step.begin_ns = first.begin;
    for (auto* values :
         {&step.late, &step.in_hook, &step.waits, &step.transfer, &step.exposed, &step.behind})
        values->resize(ranks);
    return step;
}

// Operations outside a step belong to the step before them.
std::vector<StepLateness> steps_of(const std::vector<Run>& runs) {
    std::vector<StepLateness> steps;
    for (const auto& [sequence, operation] : runs.front().operations) {
        const bool everywhere =
            std::all_of(runs.begin(), runs.end(),
                        [at = sequence](const Run& run) { return run.operations.count(at) != 0; });
        if (!everywhere) continue;
        if (operation.step >= 0 && (steps.empty() || operation.step != steps.back().step))
            steps.push_back(new_step(runs.size(), operation));
        if (steps.empty()) continue;
        steps.back().bytes += operation.bytes;
        add_operation(steps.back(), runs, sequence);
    }
    return steps;
}

// By how much the rank is later than each other one, step after step. A few steps in which
// something else happened do not count: those at either end are cut off.
bool is_slow(const std::vector<StepLateness>& steps, std::size_t rank, double step_ns) {
    std::vector<double> more;
    for (const StepLateness& step : steps) {
        double others = 0;
        for (std::size_t other = 0; other < step.late.size(); ++other)
            if (other != rank) others = std::max(others, step.late[other]);
        more.push_back(step.late[rank] - others);
    }
    std::sort(more.begin(), more.end());
    const std::size_t cut = more.size() / kCutOff;
    double sum = 0, squares = 0;
    for (std::size_t i = cut; i < more.size() - cut; ++i) {
        sum += more[i];
        squares += more[i] * more[i];
    }
    const auto count = static_cast<double>(more.size() - 2 * cut);
    const double mean = sum / count;
    const double error = std::sqrt(std::max(0.0, squares / count - mean * mean) / count);
    return mean > kCertain * (1 + kFewSteps / count) * error && mean > kWorthSaying * step_ns &&
           mean > kWorthSayingNs;
}

// The least of all ranks: one that is woken late waits longer.
double exposed_everywhere(const Pace& pace) {
    return std::min_element(
               pace.ranks.begin(), pace.ranks.end(),
               [](const Lateness& a, const Lateness& b) { return a.exposed < b.exposed; })
        ->exposed;
}

bool collectives_are_slow(const Pace& pace, double operations) {
    const double exposed = exposed_everywhere(pace);
    return exposed > kMostOfStep * pace.step &&
           (pace.bytes >= kManyBytes || exposed > kLongOperationNs * operations);
}

std::string collectives_sentence(const Pace& pace, const Group& group) {
    std::string text =
        str("collectives take most of each step: ", duration_text(exposed_everywhere(pace)), " of ",
            duration_text(pace.step), " (", pace.steps, " steps, ",
            bytes_text(static_cast<double>(pace.bytes)), " in each), though no rank is late");
    const auto speed = speed_text(group);
    return speed ? str(text, "; ", *speed) : text;
}

std::string sentence_of(const Pace& pace, const Lateness& slow) {
    const double share = slow.in_hook / slow.late;
    return str("rank ", slow.rank, " is slow: the others wait ", duration_text(slow.late),
               " for it in each step of ", duration_text(pace.step), " (", pace.steps,
               " steps); it spends this time in its ",
               share > 0.5 ? "communication hook"
                           : "own code (data, forward and backward pass, optimizer)");
}

}  // namespace

std::vector<StepLateness> find_steps(const Group& group) {
    std::vector<Run> runs;
    if (!group.is_whole()) return {};
    for (const Position& position : group.recorded) runs.push_back(run_of(position, group.now_ns));
    return steps_of(runs);
}

std::optional<Pace> find_pace(const Group& group, std::int64_t latest_ns) {
    std::vector<StepLateness> steps = find_steps(group);
    if (static_cast<std::int64_t>(steps.size()) < kLeastSteps + 2) return std::nullopt;
    const std::int64_t end = steps.back().begin_ns;
    steps.pop_back();
    const auto first = std::find_if(
        steps.begin() + 1, steps.end() - kLeastSteps,
        [&](const StepLateness& step) { return group.now_ns - step.begin_ns <= latest_ns; });
    steps.erase(steps.begin(), first);
    const std::int64_t begin = steps.front().begin_ns;

    Pace pace;
    pace.steps = static_cast<std::int64_t>(steps.size());
    const auto count = static_cast<double>(steps.size());
    pace.step = static_cast<double>(end - begin) / count;
    double operations = 0;  // of a step
    for (const StepLateness& step : steps) {
        pace.bytes += step.bytes;
        operations += static_cast<double>(step.operations) / count;
    }
    pace.bytes /= steps.size();
    for (std::size_t rank = 0; rank < group.recorded.size(); ++rank) {
        Lateness sum;
        sum.rank = static_cast<std::int32_t>(rank);
        for (const StepLateness& step : steps) {
            sum.late += step.late[rank] / count;
            sum.in_hook += step.in_hook[rank] / count;
            sum.waits += step.waits[rank] / count;
            sum.transfer += step.transfer[rank] / count;
            sum.exposed += step.exposed[rank] / count;
        }
        pace.ranks.push_back(sum);
    }
    const auto latest =
        std::max_element(pace.ranks.begin(), pace.ranks.end(),
                         [](const Lateness& a, const Lateness& b) { return a.late < b.late; });
    if (is_slow(steps, static_cast<std::size_t>(latest->rank), pace.step)) {
        pace.slow = latest->rank;
        pace.sentence = sentence_of(pace, *latest);
    } else if (collectives_are_slow(pace, operations)) {
        pace.sentence = collectives_sentence(pace, group);
    }
    return pace;
}

}  // namespace libddp::record
