#include "why/trace.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "util/text.h"
#include "why/span.h"
#include "write_text.h"

namespace why {
namespace {

using namespace libddp::record;

// From the beginning of the first step on any rank to the end of the last one on any rank; or all.
Span window_of(const std::vector<ProcessRecord>& records, const Steps& steps) {
    std::optional<Span> window;
    for (const ProcessRecord& process : records) {
        for (const Event& event : process.events) {
            const bool step =
                event.kind == EventKind::kStepBegin || event.kind == EventKind::kStepEnd;
            if (steps != Steps{} && (!step || event.step < steps.first || event.step > steps.last))
                continue;
            const std::int64_t at = event.time_ns;
            const std::int64_t begin = event.since_ns != 0 ? event.since_ns : at;
            if (!window) window = Span{begin, at};
            window->begin = std::min(window->begin, begin);
            window->end = std::max(window->end, at);
        }
    }
    if (!window) throw std::runtime_error("no record holds the steps that the trace is to show");
    return *window;
}

// The rows of a rank, from top to bottom. Marks of the program's threads follow from kMarks on.
enum Row { kSteps = 1, kHooks, kCollectives, kMarks };

class Writer {
public:
    Writer(nlohmann::json& events, const Span& window, std::int64_t process)
        : events_(events), window_(window), process_(process) {}

    void name_process(const std::string& name) { metadata("process_name", 0, name); }
    void label_process(const std::string& label) {
        events_.push_back({{"ph", "M"},
                           {"pid", process_},
                           {"name", "process_labels"},
                           {"args", {{"labels", label}}}});
    }
    void name_row(std::int64_t row, const std::string& name) { metadata("thread_name", row, name); }

    void span(std::int64_t row, const std::string& name, std::int64_t begin, std::int64_t end,
              nlohmann::json arguments = nlohmann::json::object()) {
        if (end < window_.begin || begin > window_.end || end < begin) return;
        events_.push_back({{"ph", "X"},
                           {"pid", process_},
                           {"tid", row},
                           {"name", name},
                           {"ts", microseconds(begin)},
                           {"dur", static_cast<double>(end - begin) / 1e3},
                           {"args", std::move(arguments)}});
    }
    // A number from this time on.
    void level(const std::string& name, const std::string& of, std::int64_t at,
               std::uint64_t value) {
        if (at < window_.begin || at > window_.end) return;
        events_.push_back({{"ph", "C"},
                           {"pid", process_},
                           {"name", name},
                           {"ts", microseconds(at)},
                           {"args", {{of, value}}}});
    }
    // One end of an arrow, at a span that begins then.
    void arrow(std::int64_t row, const std::string& id, bool first, std::int64_t at) {
        if (at < window_.begin || at > window_.end) return;
        nlohmann::json event{{"ph", first ? "s" : "t"}, {"pid", process_},      {"tid", row},
                             {"cat", "collective"},     {"name", "collective"}, {"id", id},
                             {"ts", microseconds(at)}};
        events_.push_back(std::move(event));
    }

private:
    double microseconds(std::int64_t at) const {
        return static_cast<double>(at - window_.begin) / 1e3;
    }
    void metadata(const char* what, std::int64_t row, const std::string& name) {
        events_.push_back({{"ph", "M"},
                           {"pid", process_},
                           {"tid", row},
                           {"name", what},
                           {"args", {{"name", name}}}});
    }

    nlohmann::json& events_;
    const Span& window_;
    const std::int64_t process_;
};

std::string step_name(std::int64_t step, const char* part) {
    return "step " + std::to_string(step) + ": " + part;
}

// The marks of one thread that are open.
struct Marks {
    std::int64_t row = 0;
    std::vector<std::pair<std::string, std::int64_t>> open;
};

// Writes what one process did for one group.
class RankRows {
public:
    RankRows(Writer& writer, const Position& position, const std::string& group)
        : writer_(writer),
          position_(position),
          group_(group),
          contexts_(*position.process, *position.group) {}

    void write() {
        for (const Event& event : position_.process->events) take(event);
    }

private:
    void take(const Event& event) {
        const std::int64_t at = event.time_ns;
        if (event.kind == EventKind::kMarkBegin || event.kind == EventKind::kMarkEnd)
            return take_mark(event, at);
        if (event.owner == 0) return;
        if (event.owner == position_.group->owner) return take_operation(event, at);
        if (contexts_.find(event.owner)) take_step(event, at);
    }

    void take_operation(const Event& event, std::int64_t at) {
        if (event.kind != EventKind::kOperationEnd) return;
        const std::int64_t begin = event.since_ns;
        const Underway operation{event.sequence, begin, event.step, event.bucket, event.detail};
        nlohmann::json arguments{
            {"bytes", event.bytes}, {"sequence", event.sequence}, {"group", group_}};
        writer_.span(kCollectives, describe(operation), begin, at, std::move(arguments));
        writer_.arrow(kCollectives, group_ + "/" + std::to_string(event.sequence),
                      position_.rank == 0, begin);
    }

    void take_step(const Event& event, std::int64_t at) {
        switch (event.kind) {
            case EventKind::kStepBegin:
                began_ = at;
                if (event.bytes > 0)
                    writer_.level("share of the batch", "samples", at, event.bytes);
                return;
            case EventKind::kBackwardEnd:
                if (began_ != 0)
                    writer_.span(kSteps, step_name(event.step, "backward pass"), began_, at);
                closed_ = at;
                return;
            case EventKind::kStepEnd:
                if (closed_ != 0)
                    writer_.span(kSteps, step_name(event.step, "ddp_finalize"), closed_, at);
                began_ = closed_ = 0;
                return;
            case EventKind::kHookEnd:
                writer_.span(kHooks, "hook, bucket " + std::to_string(event.bucket), event.since_ns,
                             at, {{"step", event.step}, {"bytes", event.bytes}});
                return;
            default:
                return;
        }
    }

    void take_mark(const Event& event, std::int64_t at) {
        Marks& marks = marks_[event.param];
        if (marks.row == 0) {
            marks.row = kMarks + static_cast<std::int64_t>(marks_.size()) - 1;
            writer_.name_row(marks.row, "marks of thread " + std::to_string(event.param));
        }
        if (event.kind == EventKind::kMarkBegin) {
            marks.open.emplace_back(position_.process->mark(event.sequence), at);
        } else if (!marks.open.empty()) {
            writer_.span(marks.row, marks.open.back().first, marks.open.back().second, at);
            marks.open.pop_back();
        }
    }

    Writer& writer_;
    const Position& position_;
    const std::string& group_;
    const ContextsOfGroup contexts_;
    std::int64_t began_ = 0, closed_ = 0;
    std::map<std::int32_t, Marks> marks_;
};

// How far the times of this process may be off.
std::string clock_text(const ProcessRecord& process) {
    if (process.clock.uncertainty_ns == Clock::kUnknown) return "clock: the host's own time of day";
    if (process.clock.uncertainty_ns == 0) return "clock: the one of the first rank's host";
    return "clock: within " + duration_text(static_cast<double>(process.clock.uncertainty_ns));
}

std::int64_t parse_step(const std::string& text) {
    std::int64_t step = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), step);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size() || step < 0)
        throw std::invalid_argument("'" + text + "' is no number of a step");
    return step;
}

}  // namespace

Steps parse_steps(const std::string& text) {
    const std::size_t dash = text.find('-');
    const Steps steps{parse_step(text.substr(0, dash)),
                      parse_step(dash == std::string::npos ? text : text.substr(dash + 1))};
    if (steps.last < steps.first)
        throw std::invalid_argument("'" + text + "' ends before it begins");
    return steps;
}

void write_trace(const std::string& path, const std::vector<ProcessRecord>& records,
                 const std::vector<Group>& groups, const Steps& steps) {
    const Span window = window_of(records, steps);
    nlohmann::json events = nlohmann::json::array();
    std::int64_t process = 0;
    for (const Group& group : groups) {
        for (const Position& position : group.recorded) {
            Writer writer(events, window, ++process);
            writer.name_process("rank " + std::to_string(position.rank) + " of group '" +
                                group.name + "', pid " +
                                std::to_string(position.process->identity.pid) + " on " +
                                position.process->identity.host);
            writer.label_process(clock_text(*position.process));
            writer.name_row(kSteps, "steps");
            writer.name_row(kHooks, "hooks");
            writer.name_row(kCollectives, "collectives");
            RankRows(writer, position, group.name).write();
        }
    }
    const nlohmann::json trace{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
    // Names may be no UTF-8.
    libddp::write_file(path, trace.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace why
