#include "record/lateness.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "util/error.h"

namespace libddp::record {
namespace {

// A rank is slow if its lateness is this many times the standard error of its mean, and this part of a step.
constexpr double kCertain = 6;
constexpr double kWorthSaying = 0.02;

struct Span {
    std::int64_t begin = 0, end = 0;
};

struct Operation : Span {
    std::int64_t step = -1;
    std::uint64_t bytes = 0;
};

// What one rank has recorded, by the number of the operation.
struct Run {
    std::map<std::int64_t, Operation> operations;
    std::vector<Span> hooks;
};

Run run_of(const Position& position, std::int64_t offset, std::int64_t until_ns) {
    Run run;
    for (const Event& event : position.process->events) {
        const std::int64_t at = event.time_ns + offset;
        if (at > until_ns) break;
        if (event.owner == position.group->owner && event.kind == EventKind::kOperationEnd) {
            Operation operation;
            operation.begin = event.since_ns + offset;
            operation.end = at;
            operation.step = event.step;
            operation.bytes = event.bytes;
            run.operations[event.sequence] = operation;
        } else if (event.kind == EventKind::kHookEnd) {
            const ContextRecord* context = position.process->context(event.owner);
            if (context && context->group == position.group->owner) run.hooks.push_back({event.since_ns + offset, at});
        }
    }
    return run;
}

double overlap(const std::vector<Span>& spans, const Span& with) {
    std::int64_t sum = 0;
    for (const Span& span : spans)
        sum += std::max<std::int64_t>(0, std::min(span.end, with.end) - std::max(span.begin, with.begin));
    return static_cast<double>(sum);
}

void add_operation(StepLateness& step, const std::vector<Run>& runs, std::int64_t sequence) {
    std::vector<std::int64_t> came;
    for (const Run& run : runs) came.push_back(run.operations.at(sequence).begin);
    const auto last = static_cast<std::size_t>(std::max_element(came.begin(), came.end()) - came.begin());
    const std::int64_t first = *std::min_element(came.begin(), came.end());
    std::int64_t before = came[last == 0 ? 1 : 0];  // the last but one
    for (std::size_t rank = 0; rank < came.size(); ++rank)
        if (rank != last) before = std::max(before, came[rank]);
    step.late[last] += static_cast<double>(came[last] - before);
    step.in_hook[last] += overlap(runs[last].hooks, {before, came[last]});
    for (std::size_t rank = 0; rank < came.size(); ++rank) {
        step.waits[rank] += static_cast<double>(came[last] - came[rank]);
        step.behind[rank] += static_cast<double>(came[rank] - first);
        step.transfer[rank] +=
            static_cast<double>(std::max<std::int64_t>(0, runs[rank].operations.at(sequence).end - came[last]));
    }
}

StepLateness new_step(std::size_t ranks, const Operation& first) {
    StepLateness step;
    step.step = first.step;
    step.begin_ns = first.begin;
    for (auto* values : {&step.late, &step.in_hook, &step.waits, &step.transfer, &step.behind}) values->resize(ranks);
    return step;
}

// Operations outside a step belong to the step before them.
std::vector<StepLateness> steps_of(const std::vector<Run>& runs) {
    std::vector<StepLateness> steps;
    for (const auto& [sequence, operation] : runs.front().operations) {
        const bool everywhere = std::all_of(runs.begin(), runs.end(),
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

// Whether the rank is later than each other one, step after step.
bool is_slow(const std::vector<StepLateness>& steps, std::size_t rank, double step_ns) {
    double sum = 0, squares = 0;
    for (const StepLateness& step : steps) {
        double others = 0;
        for (std::size_t other = 0; other < step.late.size(); ++other)
            if (other != rank) others = std::max(others, step.late[other]);
        const double more = step.late[rank] - others;
        sum += more;
        squares += more * more;
    }
    const auto count = static_cast<double>(steps.size());
    const double mean = sum / count;
    const double error = std::sqrt(std::max(0.0, squares / count - mean * mean) / count);
    return mean > kCertain * error && mean > kWorthSaying * step_ns;
}

std::string sentence_of(const Pace& pace, const Lateness& slow) {
    const double share = slow.in_hook / slow.late;
    return str("rank ", slow.rank, " is slow: the others wait ", duration_text(slow.late), " for it in each step of ",
               duration_text(pace.step), " (", pace.steps, " steps); it spends this time in its ",
               share > 0.5 ? "communication hook" : "own code (data, forward and backward pass, optimizer)");
}

}  // namespace

std::vector<StepLateness> find_steps(const std::vector<ProcessRecord>& records, const Group& group) {
    std::vector<Run> runs;
    for (const Position& position : group.ranks) {
        if (!position.process) return {};
        runs.push_back(run_of(position, clock_offset(records, *position.process), group.now_ns));
    }
    return steps_of(runs);
}

std::optional<Pace> find_pace(const std::vector<ProcessRecord>& records, const Group& group, std::int64_t latest_ns) {
    std::vector<StepLateness> steps = find_steps(records, group);
    if (static_cast<std::int64_t>(steps.size()) < kLeastSteps + 2) return std::nullopt;
    const std::int64_t end = steps.back().begin_ns;
    steps.pop_back();
    const auto first = std::find_if(steps.begin() + 1, steps.end() - kLeastSteps, [&](const StepLateness& step) {
        return group.now_ns - step.begin_ns <= latest_ns;
    });
    steps.erase(steps.begin(), first);
    const std::int64_t begin = steps.front().begin_ns;

    Pace pace;
    pace.steps = static_cast<std::int64_t>(steps.size());
    const auto count = static_cast<double>(steps.size());
    pace.step = static_cast<double>(end - begin) / count;
    for (const StepLateness& step : steps) pace.bytes += step.bytes;
    pace.bytes /= steps.size();
    for (std::size_t rank = 0; rank < group.ranks.size(); ++rank) {
        Lateness sum;
        sum.rank = static_cast<std::int32_t>(rank);
        for (const StepLateness& step : steps) {
            sum.late += step.late[rank] / count;
            sum.in_hook += step.in_hook[rank] / count;
            sum.waits += step.waits[rank] / count;
            sum.transfer += step.transfer[rank] / count;
        }
        pace.ranks.push_back(sum);
    }
    const auto latest = std::max_element(pace.ranks.begin(), pace.ranks.end(),
                                         [](const Lateness& a, const Lateness& b) { return a.late < b.late; });
    if (is_slow(steps, static_cast<std::size_t>(latest->rank), pace.step)) {
        pace.slow = latest->rank;
        pace.sentence = sentence_of(pace, *latest);
    }
    return pace;
}

}  // namespace libddp::record
