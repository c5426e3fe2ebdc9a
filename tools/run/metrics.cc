#include "metrics.h"

#include <ddp/status.h>

#include <array>
#include <charconv>
#include <utility>

#include "util/printable.h"

namespace ddprun {
namespace {

namespace record = libddp::record;
using At = record::Position::At;
using Labels = std::vector<std::pair<const char*, std::string>>;

constexpr double kSecond = 1e9;  // in nanoseconds

constexpr std::array<std::pair<At, const char*>, 7> kPositions{{{At::kJoining, "joining"},
                                                                {At::kProgram, "program"},
                                                                {At::kBackward, "backward"},
                                                                {At::kHook, "hook"},
                                                                {At::kFinalize, "finalize"},
                                                                {At::kOperation, "operation"},
                                                                {At::kLeft, "left"}}};
constexpr std::array<std::pair<record::Life, const char*>, 4> kLives{
    {{record::Life::kRuns, "running"},
     {record::Life::kStopped, "stopped"},
     {record::Life::kEnded, "ended"},
     {record::Life::kUnknown, "unknown"}}};

std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : libddp::printable(text)) {
        if (c == '\\' || c == '"') result += '\\';
        result += c;
    }
    return result;
}

// One metric: what it means, and then its values.
class Metric {
public:
    Metric(std::string& text, const char* type, std::string name, const char* help)
        : text_(text), type_(type), name_(std::move(name)), help_(help) {}

    template <class Value>
    void add(const Labels& labels, Value value) {
        if (!begun_)
            text_ += "# HELP " + name_ + ' ' + help_ + "\n# TYPE " + name_ + ' ' + type_ + '\n';
        begun_ = true;
        text_ += name_;
        const char* before = "{";
        for (const auto& [label, of] : labels) {
            text_ += before;
            text_ += label;
            text_ += "=\"" + escaped(of) + '"';
            before = ",";
        }
        if (!labels.empty()) text_ += '}';
        std::array<char, 32> digits{};
        text_ += ' ';
        text_.append(digits.data(),
                     std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
        text_ += '\n';
    }

private:
    std::string& text_;
    const char* const type_;
    const std::string name_;
    const char* const help_;
    bool begun_ = false;
};

class Writer {
public:
    explicit Writer(const Snapshot& snapshot) : snapshot_(snapshot) {}

    std::string write(const JobNow& job) {
        metric("gauge", "build_info", "The version of ddprun.")
            .add({{"version", ddp_version()}}, 1);
        metric("gauge", "job_ranks", "Ranks that ddprun has started on this node.")
            .add({}, job.local_ranks);
        metric("counter", "job_restarts_total", "How often the job has been restarted.")
            .add({}, job.restarts);
        metric("gauge", "records", "Processes whose records can be read.")
            .add({}, snapshot_.processes().size());
        write_groups();
        write_lives();
        write_counters();
        write_progress();
        write_lateness();
        return std::move(text_);
    }

private:
    struct Rank {
        const GroupNow& group;
        const record::Position& position;
        const record::Progress& progress;
        Labels labels;
    };

    Metric metric(const char* type, const char* name, const char* help) {
        return {text_, type, std::string("libddp_") + name, help};
    }

    static Labels with(Labels labels, const char* name, std::string value) {
        labels.emplace_back(name, std::move(value));
        return labels;
    }

    // Calls `take` for each rank of which there is a record.
    template <class Take>
    void each_rank(const Take& take) const {
        for (const GroupNow& group : snapshot_.groups()) {
            for (std::size_t i = 0; i < group.group.recorded.size(); ++i) {
                const record::Position& position = group.group.recorded[i];
                take(Rank{group,
                          position,
                          group.progress[i],
                          {{"group", group.label}, {"rank", std::to_string(position.rank)}}});
            }
        }
    }

    // value: of a rank. Where it is negative it is unknown, and left out.
    template <class Value>
    void gauge(const char* name, const char* help, const Value& value) {
        Metric one = metric("gauge", name, help);
        each_rank([&](const Rank& rank) {
            if (const auto now = value(rank); now >= 0) one.add(rank.labels, now);
        });
    }

    void counter(const char* name, const char* help, std::uint64_t record::Totals::*total) {
        Metric one = metric("counter", name, help);
        each_rank(
            [&](const Rank& rank) { one.add(rank.labels, rank.position.group->totals.*total); });
    }

    void write_groups() {
        Metric ranks = metric("gauge", "group_ranks", "Ranks of the group.");
        for (const GroupNow& now : snapshot_.groups())
            ranks.add({{"group", now.label}}, now.group.world);
        Metric broken = metric("gauge", "group_broken", "1 if the group is broken.");
        for (const GroupNow& now : snapshot_.groups())
            broken.add({{"group", now.label}}, now.group.verdict ? 1 : 0);
        Metric verdict =
            metric("gauge", "group_verdict", "What broke the group, and the rank that it names.");
        for (const GroupNow& now : snapshot_.groups()) {
            if (!now.group.verdict) continue;
            verdict.add(
                {{"group", now.label},
                 {"status", ddp_status_name(static_cast<ddp_status>(now.group.verdict->status))},
                 {"rank", std::to_string(now.group.verdict->rank)}},
                1);
        }
        Metric cause = metric("gauge", "group_held_up_by",
                              "The rank for which others have waited longer than 1 s, or -1, and "
                              "how it holds them up.");
        for (const GroupNow& now : snapshot_.groups()) {
            if (!now.cause) continue;
            cause.add({{"group", now.label},
                       {"rank", std::to_string(now.cause->rank)},
                       {"kind", record::kind_name(now.cause->kind)}},
                      1);
        }
    }

    void write_lives() {
        Metric info = metric("gauge", "rank_info", "The process of the rank.");
        each_rank([&](const Rank& rank) {
            info.add(with(with(rank.labels, "host", rank.position.process->identity.host), "pid",
                          std::to_string(rank.position.process->identity.pid)),
                     1);
        });
        gauge("rank_up", "1 if the process of the rank is there, even if it is stopped.",
              [](const Rank& rank) {
                  return rank.position.life == record::Life::kRuns ||
                                 rank.position.life == record::Life::kStopped
                             ? 1
                             : 0;
              });
        Metric state = metric("gauge", "rank_state", "1 for the state of the process.");
        each_rank([&](const Rank& rank) {
            for (const auto& [life, name] : kLives)
                state.add(with(rank.labels, "state", name), rank.position.life == life ? 1 : 0);
        });
        Metric position = metric("gauge", "rank_position", "1 for where the rank is.");
        each_rank([&](const Rank& rank) {
            for (const auto& [at, name] : kPositions)
                position.add(with(rank.labels, "position", name), rank.position.at == at ? 1 : 0);
        });
        gauge("last_event_age_seconds", "Time since the rank last recorded anything.",
              [](const Rank& rank) {
                  const auto since = rank.position.last_ns == 0
                                         ? 0
                                         : rank.group.group.now_ns - rank.position.last_ns;
                  return static_cast<double>(std::max<std::int64_t>(since, 0)) / kSecond;
              });
        gauge("collective_age_seconds", "How long the collective under way has lasted.",
              [](const Rank& rank) {
                  if (!rank.position.underway) return 0.0;
                  return std::max(0.0, static_cast<double>(rank.group.group.now_ns -
                                                           rank.position.underway->since_ns) /
                                           kSecond);
              });
    }

    void write_counters() {
        counter("steps_total", "Steps that have ended.", &record::Totals::steps);
        counter("synced_steps_total", "Those of them that communicated.",
                &record::Totals::synced_steps);
        counter("collectives_total", "Collectives that have ended.", &record::Totals::operations);
        counter("collective_bytes_total", "Bytes that the rank gave to these collectives.",
                &record::Totals::bytes);
        Metric seconds =
            metric("counter", "collective_seconds_total",
                   "Time in these collectives, from begin to end: waits and transfers.");
        each_rank([&](const Rank& rank) {
            seconds.add(rank.labels,
                        static_cast<double>(rank.position.group->totals.operation_ns) / kSecond);
        });
    }

    void write_progress() {
        gauge("step", "The number of the step under way, or of the last one, from 0.",
              [](const Rank& rank) { return rank.position.step; });
        gauge("gradients_announced", "Gradients of the step under way that have been announced.",
              [](const Rank& rank) { return static_cast<std::int64_t>(rank.position.announced); });
        gauge("gradients_expected", "Gradients that the step under way is to have.",
              [](const Rank& rank) { return static_cast<std::int64_t>(rank.position.expected); });
        gauge("step_seconds",
              "Time from step to step, as the mean of the last 30 s. It grows while none ends.",
              [](const Rank& rank) { return known(rank.progress.step_ns / kSecond); });
        gauge("samples_per_second",
              "Samples of the rank, from ddp_set_workload and the duration of a step.",
              [](const Rank& rank) { return known(rank.progress.samples_per_second); });
        gauge("remaining_seconds", "Time until the run has the steps of ddp_set_workload.",
              [](const Rank& rank) { return known(rank.progress.left_ns / kSecond); });
    }

    void write_lateness() {
        const auto of = [&](const char* name, const char* help, double record::Lateness::*part) {
            gauge(name, help, [part](const Rank& rank) {
                if (!rank.group.pace) return -1.0;
                return rank.group.pace->ranks[static_cast<std::size_t>(rank.position.rank)].*part /
                       kSecond;
            });
        };
        of("late_seconds", "How long all others wait for the rank, per step of the last 30 s.",
           &record::Lateness::late);
        of("late_in_hook_seconds",
           "The part of that in which the rank was in its communication hook.",
           &record::Lateness::in_hook);
        of("wait_seconds", "How long the rank waits for the last one, per step of the last 30 s.",
           &record::Lateness::waits);
        of("transfer_seconds",
           "Time of collectives from the arrival of the last rank, per step of the last 30 s.",
           &record::Lateness::transfer);
        gauge("rank_slow", "1 if the rank is later than all others, step after step.",
              [](const Rank& rank) {
                  if (!rank.group.pace) return -1;
                  return rank.group.pace->slow == rank.position.rank ? 1 : 0;
              });
    }

    static double known(double value) { return value > 0 ? value : -1; }

    const Snapshot& snapshot_;
    std::string text_;
};

}  // namespace

std::string metrics_text(const JobNow& job, const Snapshot& snapshot) {
    return Writer(snapshot).write(job);
}

}  // namespace ddprun
