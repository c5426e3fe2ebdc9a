#include "why/summary.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "record/operation.h"
#include "why/cause.h"
#include "why/lateness.h"
#include "why/span.h"

namespace why {
namespace {

using namespace libddp::record;
using nlohmann::json;

constexpr const char* kFormat = "ddp-why 1";

struct Operation : Span {
    std::int64_t sequence = 0;
    std::uint64_t bytes = 0;
};

struct Bucket {
    std::int64_t launched = 0;
    std::optional<Span> hook;
    std::uint64_t bytes = 0;
    std::vector<Operation> operations;
};

// The times of one rank in one step of a context, in nanoseconds.
struct Step {
    std::int64_t number = -1;
    bool synced = false;
    std::int64_t begin = 0, closed = 0, end = 0;
    std::optional<std::int64_t> before;  // the end of the step before
    std::int64_t collectives = 0;        // outside of steps, since then
    std::int64_t hook = 0;               // in the backward pass
    std::int64_t overlapped = 0;         // operations of buckets in the backward pass
    std::uint64_t share = 0;             // of the global batch, in samples; 0: it is not shared
    std::map<std::int32_t, Bucket> buckets;

    std::int64_t time() const { return end - before.value_or(begin); }
};

// The collectives of one kind and purpose.
struct Traffic {
    std::int64_t count = 0, ns = 0;
    std::uint64_t bytes = 0;
};

// The times of one rank in its group.
struct Rank {
    // in the order in which they were made: the same on all ranks
    std::vector<std::vector<Step>> contexts;
    std::map<std::string, Traffic> traffic;
    std::map<std::int64_t, std::int64_t> came;  // to which operation, and when
    std::int32_t number = 0;
};

// The ranks that have a record.
struct Ranks {
    std::vector<Rank> recorded;
    bool whole = false;  // all have
};

class Follower {
public:
    Follower(const Position& position, std::int64_t until_ns)
        : process_(*position.process), group_(*position.group), until_ns_(until_ns) {
        for (const ContextRecord& context : process_.contexts)
            if (context.group == group_.owner) contexts_.push_back({context.owner, {}, {}, {}});
    }

    Rank follow() {
        for (const Event& event : process_.events) {
            const std::int64_t at = event.time_ns;
            if (at > until_ns_) break;
            if (event.owner == group_.owner) {
                if (event.kind == EventKind::kOperationEnd) take_operation(event, at);
                continue;
            }
            for (Context& context : contexts_)
                if (context.owner == event.owner) take_step(context, event, at);
        }
        rank_.number = group_.rank;
        for (Context& context : contexts_) rank_.contexts.push_back(std::move(context.steps));
        return std::move(rank_);
    }

private:
    struct Context {
        std::uint16_t owner;
        std::vector<Step> steps;
        std::optional<Step> step;  // under way
        std::optional<std::int64_t> ended;
        std::int64_t collectives = 0;
    };

    void take_step(Context& context, const Event& event, std::int64_t at) {
        if (event.kind == EventKind::kStepBegin) {
            context.step = Step{};
            context.step->number = event.step;
            context.step->synced = event.detail == 1;
            context.step->share = event.bytes;
            context.step->begin = at;
            context.step->before = context.ended;
            context.step->collectives = std::exchange(context.collectives, 0);
            return;
        }
        if (!context.step) return;
        Step& step = *context.step;
        switch (event.kind) {
            case EventKind::kLaunch: {
                Bucket& bucket = step.buckets[event.bucket];
                bucket.launched = at;
                bucket.bytes = event.bytes;
                launched_by_ = &context;
                return;
            }
            case EventKind::kHookEnd:
                step.buckets[event.bucket].hook = Span{event.since_ns, at};
                return;
            case EventKind::kBackwardEnd:
                step.closed = at;
                return;
            case EventKind::kStepEnd:
                end(context, at);
                return;
            default:
                return;
        }
    }

    void end(Context& context, std::int64_t at) {
        Step& step = *context.step;
        step.end = at;
        const Span backward{step.begin, step.closed};
        for (const auto& [index, bucket] : step.buckets) {
            if (bucket.hook) step.hook += overlap(*bucket.hook, backward);
            for (const Operation& operation : bucket.operations)
                step.overlapped += overlap(operation, backward);
        }
        if (step.closed != 0) context.steps.push_back(std::move(step));
        context.step.reset();
        context.ended = at;
        context.collectives = 0;
    }

    void take_operation(const Event& event, std::int64_t at) {
        Operation operation;
        operation.begin = event.since_ns;
        operation.end = at;
        operation.sequence = event.sequence;
        operation.bytes = event.bytes;
        rank_.came[event.sequence] = operation.begin;

        const Underway what{event.sequence, operation.begin, event.step, -1, event.detail};
        Traffic& traffic = rank_.traffic[event.bucket >= 0 ? "buckets" : describe(what)];
        ++traffic.count;
        traffic.ns += operation.end - operation.begin;
        traffic.bytes += event.bytes;

        for (Context& context : contexts_) {
            if (context.step) {
                const bool its = event.bucket >= 0 && &context == launched_by_ &&
                                 context.step->number == event.step;
                if (its) context.step->buckets[event.bucket].operations.push_back(operation);
            } else if (context.ended) {
                context.collectives += overlap(operation, {*context.ended, at});
            }
        }
    }

    const ProcessRecord& process_;
    const GroupRecord& group_;
    const std::int64_t until_ns_;
    std::vector<Context> contexts_;
    const Context* launched_by_ = nullptr;  // operations do not say whose bucket they carry
    Rank rank_;
};

const char* name_of(Life life) {
    switch (life) {
        case Life::kRuns:
            return "runs";
        case Life::kStopped:
            return "stopped";
        case Life::kEnded:
            return "ended";
        case Life::kUnknown:
            break;
    }
    return "unknown";
}

std::int64_t whole(double ns) {
    return static_cast<std::int64_t>(ns);
}

json pace_of(const Pace& pace) {
    json ranks = json::array();
    for (const Lateness& rank : pace.ranks)
        ranks.push_back({{"rank", rank.rank},
                         {"late_ns", whole(rank.late)},
                         {"in_hook_ns", whole(rank.in_hook)},
                         {"waits_ns", whole(rank.waits)},
                         {"transfer_ns", whole(rank.transfer)}});
    return {{"steps", pace.steps},       {"step_ns", whole(pace.step)},
            {"bytes", pace.bytes},       {"slow", pace.slow ? json(*pace.slow) : json()},
            {"sentence", pace.sentence}, {"ranks", std::move(ranks)}};
}

// Tables by rank, and then by step.
json lateness_of(const std::vector<StepLateness>& steps, std::size_t world) {
    json numbers = json::array();
    for (const StepLateness& step : steps) numbers.push_back(step.step);
    const auto table = [&](std::vector<double> StepLateness::*values) {
        json rows = json::array();
        for (std::size_t rank = 0; rank < world; ++rank) {
            json row = json::array();
            for (const StepLateness& step : steps) row.push_back(whole((step.*values)[rank]));
            rows.push_back(std::move(row));
        }
        return rows;
    };
    return {{"steps", std::move(numbers)},
            {"behind_ns", table(&StepLateness::behind)},
            {"late_ns", table(&StepLateness::late)},
            {"waits_ns", table(&StepLateness::waits)},
            {"transfer_ns", table(&StepLateness::transfer)}};
}

json steps_of(std::int32_t rank, const std::vector<Step>& steps) {
    json out{{"rank", rank}};
    const auto column = [&](const char* name, const auto& value) {
        json values = json::array();
        for (const Step& step : steps) values.push_back(value(step));
        out[name] = std::move(values);
    };
    const auto since_before = [](const Step& step, std::int64_t ns) {
        return step.before ? json(ns) : json();
    };
    column("steps", [](const Step& step) { return step.number; });
    column("synced", [](const Step& step) { return step.synced; });
    column("end_ns", [](const Step& step) { return step.end; });
    column("step_ns", [&](const Step& step) { return since_before(step, step.time()); });
    column("own_ns", [&](const Step& step) {
        return since_before(step, step.begin - step.before.value_or(0) - step.collectives);
    });
    column("collectives_ns",
           [&](const Step& step) { return since_before(step, step.collectives); });
    column("backward_ns", [](const Step& step) {
        return std::max<std::int64_t>(0, step.closed - step.begin - step.hook);
    });
    column("hook_ns", [](const Step& step) { return step.hook; });
    column("exposed_ns", [](const Step& step) { return step.end - step.closed; });
    column("overlapped_ns", [](const Step& step) { return step.overlapped; });
    column("share", [](const Step& step) { return step.share; });
    column("gradient_bytes", [](const Step& step) {
        std::uint64_t bytes = 0;
        for (const auto& [index, bucket] : step.buckets) bytes += bucket.bytes;
        return bytes;
    });
    column("sent_bytes", [](const Step& step) {
        std::uint64_t bytes = 0;
        for (const auto& [index, bucket] : step.buckets)
            for (const Operation& operation : bucket.operations) bytes += operation.bytes;
        return bytes;
    });
    return out;
}

// When the last rank came to an operation that all ranks have recorded.
std::optional<std::int64_t> last_to_come(const Ranks& ranks, std::int64_t sequence) {
    if (!ranks.whole) return std::nullopt;
    std::int64_t last = 0;
    for (const Rank& rank : ranks.recorded) {
        const auto came = rank.came.find(sequence);
        if (came == rank.came.end()) return std::nullopt;
        last = std::max(last, came->second);
    }
    return last;
}

// A step of a context as all ranks did it.
struct CommonStep {
    std::int64_t number = 0, ns = 0;   // the mean over ranks
    std::vector<const Step*> of_rank;  // as in Ranks::recorded; null: that rank has not recorded it
};

json buckets_of(const CommonStep& common, const Ranks& ranks) {
    std::int64_t zero = std::numeric_limits<std::int64_t>::max();
    for (const Step* step : common.of_rank)
        if (step) zero = std::min(zero, step->begin);
    json out_ranks = json::array();
    for (std::size_t rank = 0; rank < common.of_rank.size(); ++rank) {
        const Step* step = common.of_rank[rank];
        if (!step) continue;
        json buckets = json::array();
        for (const auto& [index, bucket] : step->buckets) {
            json operations = json::array();
            for (const Operation& operation : bucket.operations) {
                const auto last = last_to_come(ranks, operation.sequence);
                operations.push_back({{"begin_ns", operation.begin - zero},
                                      {"all_there_ns", last ? json(*last - zero) : json()},
                                      {"end_ns", operation.end - zero},
                                      {"bytes", operation.bytes},
                                      {"sequence", operation.sequence}});
            }
            json one{{"bucket", index},
                     {"bytes", bucket.bytes},
                     {"launch_ns", bucket.launched - zero},
                     {"operations", std::move(operations)}};
            if (bucket.hook) one["hook_ns"] = {bucket.hook->begin - zero, bucket.hook->end - zero};
            buckets.push_back(std::move(one));
        }
        out_ranks.push_back({{"rank", ranks.recorded[rank].number},
                             {"begin_ns", step->begin - zero},
                             {"finalize_ns", step->closed - zero},
                             {"end_ns", step->end - zero},
                             {"buckets", std::move(buckets)}});
    }
    return {{"step", common.number}, {"step_ns", common.ns}, {"ranks", std::move(out_ranks)}};
}

// The steps that synced on all ranks which have a record.
std::vector<CommonStep> common_steps(const Ranks& ranks, std::size_t context) {
    std::map<std::int64_t, CommonStep> found;
    const std::size_t recorded = ranks.recorded.size();
    for (std::size_t rank = 0; rank < recorded; ++rank) {
        const Rank& one = ranks.recorded[rank];
        if (context >= one.contexts.size()) return {};
        for (const Step& step : one.contexts[context]) {
            if (!step.synced || !step.before) continue;
            CommonStep& common = found[step.number];
            common.number = step.number;
            common.of_rank.resize(recorded);
            common.of_rank[rank] = &step;
        }
    }
    std::vector<CommonStep> steps;
    for (auto& [number, common] : found) {
        std::size_t there = 0;
        for (const Step* step : common.of_rank) {
            if (!step) continue;
            ++there;
            common.ns += step->time();
        }
        common.ns /= static_cast<std::int64_t>(there);
        if (there == recorded) steps.push_back(std::move(common));
    }
    return steps;
}

json plan_of(const ContextRecord& context) {
    json buckets = json::array();
    for (const auto& bucket : context.buckets) {
        json names = json::array();
        for (const std::int32_t param : bucket)
            names.push_back((*context.params)[static_cast<std::size_t>(param)]);
        buckets.push_back(std::move(names));
    }
    return buckets;
}

json context_of(const Group& group, const Ranks& ranks, std::size_t context) {
    json of_ranks = json::array();
    json plan = json::array();
    for (std::size_t rank = 0; rank < ranks.recorded.size(); ++rank) {
        const Rank& one = ranks.recorded[rank];
        if (context >= one.contexts.size()) continue;
        of_ranks.push_back(steps_of(one.number, one.contexts[context]));
        std::size_t at = 0;
        const Position& position = group.recorded[rank];
        for (const ContextRecord& record : position.process->contexts)
            if (record.group == position.group->owner && at++ == context && plan.empty())
                plan = plan_of(record);
    }
    json out{{"context", context}, {"plan", std::move(plan)}, {"ranks", std::move(of_ranks)}};
    std::vector<CommonStep> steps = common_steps(ranks, context);
    if (!steps.empty()) {
        std::sort(steps.begin(), steps.end(),
                  [](const CommonStep& a, const CommonStep& b) { return a.ns < b.ns; });
        out["median_step"] = buckets_of(steps[steps.size() / 2], ranks);
        out["worst_step"] = buckets_of(steps.back(), ranks);
    }
    return out;
}

// The means of the ranks that have a record.
json traffic_of(const Ranks& ranks) {
    std::map<std::string, Traffic> sum;
    const auto recorded = static_cast<std::int64_t>(ranks.recorded.size());
    for (const Rank& rank : ranks.recorded) {
        for (const auto& [what, traffic] : rank.traffic) {
            sum[what].count += traffic.count;
            sum[what].ns += traffic.ns;
            sum[what].bytes += traffic.bytes;
        }
    }
    json out = json::array();
    for (const auto& [what, traffic] : sum)
        out.push_back({{"what", what},
                       {"count", traffic.count / recorded},
                       {"bytes", traffic.bytes / static_cast<std::uint64_t>(recorded)},
                       {"ns", traffic.ns / recorded}});
    return out;
}

json position_of(const Group& group, const Position& position) {
    json out{{"rank", position.rank},
             {"life", name_of(position.life)},
             {"ending", position.ending},
             {"killed", position.killed},
             {"where", describe(group, position)},
             {"pid", position.process->identity.pid},
             {"host", position.process->identity.host},
             {"lost_events", position.process->lost}};
    return out;
}

json group_of(const Group& group, std::int64_t patience_ns) {
    Ranks ranks;
    ranks.whole = group.is_whole();
    std::size_t contexts = 0;
    json positions = json::array();
    for (const Position& position : group.recorded) {
        positions.push_back(position_of(group, position));
        ranks.recorded.push_back(Follower(position, group.now_ns).follow());
        contexts = std::max(contexts, ranks.recorded.back().contexts.size());
    }
    json of_contexts = json::array();
    for (std::size_t context = 0; context < contexts; ++context)
        of_contexts.push_back(context_of(group, ranks, context));

    const auto cause = find_cause(group, patience_ns);
    const auto pace = find_pace(group);
    json out{{"name", group.name},
             {"backend", group.backend},
             {"world", group.world},
             {"cause", cause ? json{{"kind", kind_name(cause->kind)},
                                    {"rank", cause->rank},
                                    {"sentence", cause->sentence}}
                             : json()},
             {"error", json()},
             {"pace", pace ? pace_of(*pace) : json()},
             {"ranks", std::move(positions)},
             {"without_record", absent_ranks(group)},
             {"lateness", lateness_of(find_steps(group), ranks.recorded.size())},
             {"contexts", std::move(of_contexts)},
             {"collectives", traffic_of(ranks)}};
    if (group.verdict)
        out["error"] = {{"status", group.verdict->status}, {"rank", group.verdict->rank},
                        {"param", group.verdict->param},   {"bucket", group.verdict->bucket},
                        {"step", group.verdict->step},     {"message", group.verdict->message}};
    return out;
}

// How often each mark was set, and for how long. A mark within another counts for both.
json marks_of(const ProcessRecord& process) {
    struct Sum {
        std::int64_t count = 0, ns = 0;
    };
    std::map<std::string, Sum> sums;
    std::map<std::int32_t, std::vector<std::pair<std::int64_t, std::int64_t>>> open;  // by thread
    for (const Event& event : process.events) {
        if (event.kind == EventKind::kMarkBegin) {
            open[event.param].emplace_back(event.sequence, event.time_ns);
        } else if (event.kind == EventKind::kMarkEnd && !open[event.param].empty()) {
            const auto [id, since] = open[event.param].back();
            open[event.param].pop_back();
            Sum& sum = sums[process.mark(id)];
            ++sum.count;
            sum.ns += event.time_ns - since;
        }
    }
    json out = json::array();
    for (const auto& [name, sum] : sums)
        out.push_back({{"name", name}, {"count", sum.count}, {"ns", sum.ns}});
    return out;
}

json process_of(const ProcessRecord& process) {
    return {{"pid", process.identity.pid},
            {"host", process.identity.host},
            {"launch_rank", process.identity.launch_rank},
            {"events", process.events.size()},
            {"lost_events", process.lost},
            {"samples", process.workload.samples},
            {"steps", process.workload.steps},
            {"marks", marks_of(process)}};
}

}  // namespace

std::string summarize(const Job& job, std::int64_t patience_ns) {
    json processes = json::array(), groups = json::array();
    for (const ProcessRecord& process : job.processes) processes.push_back(process_of(process));
    for (const Group& group : job.groups) groups.push_back(group_of(group, patience_ns));
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const json out{{"format", kFormat},
                   {"folder", job.folder},
                   {"made_at", std::chrono::duration_cast<std::chrono::seconds>(now).count()},
                   {"complaints", job.complaints},
                   {"processes", std::move(processes)},
                   {"groups", std::move(groups)}};
    return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace why
