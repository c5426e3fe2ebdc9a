#include "status.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iomanip>
#include <stdexcept>
#include <thread>
#include <vector>

#include "job_file.h"
#include "loop.h"
#include "snapshot.h"
#include "util/printable.h"
#include "util/text.h"
#include "why/text.h"
#include "write_text.h"

namespace ddprun {
namespace {

namespace record = libddp::record;
using At = record::Position::At;
using Row = std::vector<std::string>;

constexpr Milliseconds kBetweenTables{1000};
constexpr const char* kNothing = "-";

// The job to show, or the folder in which ranks of another launcher keep their records.
struct Target {
    std::optional<JobFacts> job;
    std::string records;
};

bool is_number(const std::string& text) {
    return !text.empty() && text.size() < 10 &&
           std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::string title(const JobFacts& job) {
    std::string text = "ddprun " + std::to_string(job.pid) + ": " + std::to_string(job.ranks) +
                       (job.ranks == 1 ? " rank" : " ranks");
    if (job.nodes > 1)
        text += " of node " + std::to_string(job.node_rank) + " of " + std::to_string(job.nodes);
    if (job.generation > 0) text += ", restart " + std::to_string(job.generation);
    return text + ", " + libddp::printable(job.command);
}

Target by_pid(const std::string& text) {
    const int pid = std::stoi(text);
    for (const JobFacts& job : find_jobs())
        if (job.pid == pid) return {job, job.records};
    struct stat facts {};
    if (stat(("/proc/" + text).c_str(), &facts) != 0)
        throw std::runtime_error("there is no process " + text);
    if (facts.st_uid != geteuid())
        throw std::runtime_error("process " + text + " belongs to another user");
    throw std::runtime_error("process " + text + " is no ddprun that runs a job");
}

Target by_folder(const std::string& folder) {
    std::error_code error;
    const std::filesystem::directory_iterator entries(folder, error);
    if (error) throw std::runtime_error("cannot read " + folder + ": " + error.message());
    if (auto job = read_job_file(folder)) {
        // Somebody may have moved the folder.
        std::string records = std::filesystem::exists(job->records, error)
                                  ? job->records
                                  : generation_folder(folder, job->generation);
        return {std::move(job), std::move(records)};
    }
    const bool any = std::any_of(begin(entries), end(entries),
                                 [](const std::filesystem::directory_entry& entry) {
                                     return entry.path().extension() == record::kSuffix;
                                 });
    if (!any) throw std::runtime_error(folder + " holds no records of a job");
    return {std::nullopt, folder};
}

Target only_job() {
    const std::vector<JobFacts> jobs = find_jobs();
    if (jobs.empty()) throw std::runtime_error("no ddprun of this user runs a job here");
    if (jobs.size() == 1) return {jobs.front(), jobs.front().records};
    std::string text = "several jobs run; say which: ddprun --status PID";
    for (const JobFacts& job : jobs) text += "\n  " + title(job);
    throw std::runtime_error(text);
}

Target find_target(const std::string& job) {
    if (job.empty()) return only_job();
    return is_number(job) ? by_pid(job) : by_folder(job);
}

// A restart has a folder of its own.
void follow(Target& target) {
    if (!target.job) return;
    for (const JobFacts& job : find_jobs()) {
        if (job.pid != target.job->pid || job.started != target.job->started) continue;
        target.job = job;
        target.records = job.records;
    }
}

std::string decimal(double value, int digits) {
    return libddp::str(std::fixed, std::setprecision(digits), value);
}

// With three digits, as far as that makes sense.
std::string rate(double value) {
    if (value <= 0) return kNothing;
    return decimal(value, value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string time_left(double ns) {
    if (ns <= 0) return kNothing;
    const auto seconds = static_cast<long long>(std::ceil(std::min(ns / 1e9, 1e9)));
    std::array<char, 64> text{};
    if (seconds < 60)
        std::snprintf(text.data(), text.size(), "%lld s", seconds);
    else if (seconds < 86'400)
        std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", seconds / 3600,
                      seconds / 60 % 60, seconds % 60);
    else
        std::snprintf(text.data(), text.size(), "%lld d %lld h", seconds / 86'400,
                      seconds / 3600 % 24);
    return text.data();
}

std::string place(const record::Position& position) {
    switch (position.at) {
        case At::kJoining:
            return "joining";
        case At::kProgram:
            return "program";
        case At::kBackward:
            return "backward " + std::to_string(position.announced) + "/" +
                   std::to_string(position.expected);
        case At::kHook:
            return "hook, bucket " + std::to_string(position.bucket);
        case At::kFinalize:
            return "finalize";
        case At::kOperation:
            return "collective";
        case At::kLeft:
            return "left";
    }
    return "";
}

std::string state(const record::Position& position) {
    if (position.life == record::Life::kStopped) return "stopped, " + place(position);
    if (position.life == record::Life::kEnded && position.at != At::kLeft)
        return "ended, " + place(position);
    return place(position);
}

const Row kHeads{"rank", "host",      "pid",  "state", "step", "steps/s",   "samples/s",
                 "left", "late/step", "hook", "waits", "MB/s", "last event"};

// number: among those that have a record. There is a pace only where all have.
Row row_of(const GroupNow& now, std::size_t number) {
    const record::Position& position = now.group.recorded[number];
    const record::Progress& progress = now.progress[number];
    Row row{std::to_string(position.rank)};
    row.push_back(libddp::printable(position.process->identity.host));
    row.push_back(std::to_string(position.process->identity.pid));
    row.push_back(state(position));
    row.push_back(position.step < 0 ? kNothing : std::to_string(position.step));
    row.push_back(rate(progress.step_ns > 0 ? 1e9 / progress.step_ns : 0));
    row.push_back(rate(progress.samples_per_second));
    row.push_back(time_left(progress.left_ns));
    if (now.pace) {
        const record::Lateness& late = now.pace->ranks[number];
        for (const double part : {late.late, late.in_hook, late.waits})
            row.push_back(record::duration_text(part));
    } else {
        row.insert(row.end(), 3, kNothing);
    }
    row.push_back(rate(progress.bytes_per_second / 1e6));
    row.push_back(position.last_ns == 0 ? kNothing
                                        : record::duration_text(static_cast<double>(
                                              now.group.now_ns - position.last_ns)) +
                                              " ago");
    return row;
}

// Names to the left, numbers to the right.
bool is_name(std::size_t column) {
    return column == 1 || column == 3;
}

void add_table(std::vector<std::string>& lines, const std::vector<Row>& rows) {
    std::vector<std::size_t> widths(kHeads.size());
    for (const Row& row : rows)
        for (std::size_t i = 0; i < row.size(); ++i)
            widths[i] = std::max(widths[i], why::width(row[i]));
    for (const Row& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::string space(widths[i] - why::width(row[i]), ' ');
            line.append(i == 0 ? "" : "  ");
            line.append(is_name(i) ? row[i] + space : space + row[i]);
        }
        lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
    }
}

void add_group(std::vector<std::string>& lines, const GroupNow& now) {
    lines.push_back("group '" + now.label + "', " + std::to_string(now.group.world) +
                    (now.group.world == 1 ? " rank" : " ranks"));
    if (now.cause) lines.push_back(libddp::printable(now.cause->sentence));
    if (now.pace && !now.pace->sentence.empty())
        lines.push_back(libddp::printable(now.pace->sentence));
    std::vector<Row> rows{kHeads};
    for (std::size_t number = 0; number < now.group.recorded.size(); ++number)
        rows.push_back(row_of(now, number));
    add_table(lines, rows);
    if (const auto absent = record::absent_ranks(now.group); !absent.empty())
        lines.push_back("no record of " + record::ranges_text(absent));
}

std::vector<std::string> lines_of(const Target& target) {
    std::vector<std::string> lines;
    if (target.job)
        lines.push_back(title(*target.job) + (target.job->runs() ? "" : " (has ended)"));
    const Snapshot snapshot(target.records);
    for (const std::string& complaint : snapshot.complaints())
        lines.push_back(libddp::printable(complaint));
    for (const GroupNow& now : snapshot.groups()) add_group(lines, now);
    if (snapshot.groups().empty()) lines.emplace_back("no rank has made a group yet");
    return lines;
}

// The table on a terminal, each in the place of the one before.
class Screen {
public:
    void draw(const std::vector<std::string>& lines) {
        winsize size{};
        if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row < 2)
            size = {24, 80, 0, 0};
        const std::size_t shown = std::min<std::size_t>(lines.size(), size.ws_row - 1U);
        std::string text = drawn_ == 0 ? "" : "\x1b[" + std::to_string(drawn_) + "A";
        for (std::size_t i = 0; i < shown; ++i) {
            text += "\r";
            text += why::cut(lines[i], size.ws_col - 1U);
            text += "\x1b[K\n";
        }
        libddp::write_output(text + "\x1b[J");
        drawn_ = shown;
    }

private:
    std::size_t drawn_ = 0;
};

}  // namespace

int show_status(const std::string& job, bool once) {
    Target target = find_target(job);
    if (once || isatty(STDOUT_FILENO) == 0) {
        std::string text;
        for (const std::string& line : lines_of(target)) text += line + "\n";
        libddp::write_output(text);
        return 0;
    }
    Screen screen;
    for (;; std::this_thread::sleep_for(kBetweenTables)) {
        follow(target);
        const bool ended = target.job && !target.job->runs();
        try {
            screen.draw(lines_of(target));
        } catch (const std::exception&) {
            if (std::filesystem::exists(target.records)) throw;
            return 0;  // the job has ended and its records with it; the last table stays
        }
        if (ended) return 0;
    }
}

}  // namespace ddprun
