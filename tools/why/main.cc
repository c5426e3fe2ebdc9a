// ddp-why: reads the records of a job and says who holds it up, and why. docs/record.md is its
// manual.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "util/printable.h"
#include "util/text.h"
#include "why/cause.h"
#include "why/lateness.h"
#include "why/report.h"
#include "why/summary.h"
#include "why/trace.h"
#include "write_text.h"

namespace {

namespace record = libddp::record;

struct Options {
    std::string folder;
    double patience_seconds = static_cast<double>(record::kPatienceNs) / 1e9;
    std::string trace, steps, json, report;
};

void tell_pace(std::ostream& out, const record::Pace& pace) {
    out << (pace.sentence.empty() ? "no rank is slow" : pace.sentence) << '\n'
        << "  of an average step of " << record::duration_text(pace.step) << " (" << pace.steps
        << " steps, " << pace.bytes << " bytes in collectives):\n";
    for (const record::Lateness& rank : pace.ranks)
        out << "  rank " << rank.rank << ": others wait for it " << record::duration_text(rank.late)
            << " (in its hook " << record::duration_text(rank.in_hook) << "), it waits for others "
            << record::duration_text(rank.waits) << ", collectives take "
            << record::duration_text(rank.transfer) << '\n';
}

void tell(std::ostream& out, const record::Group& group, std::int64_t patience_ns) {
    out << record::group_text(group, patience_ns);
    if (const auto pace = record::find_pace(group)) tell_pace(out, *pace);
}

void write_summary(const Options& options, const why::Job& job, std::int64_t patience_ns) {
    if (options.json.empty() && options.report.empty()) return;
    const std::string summary = why::summarize(job, patience_ns);
    if (!options.json.empty()) libddp::write_file(options.json, summary + "\n");
    if (!options.report.empty()) why::write_report(options.report, summary);
}

void run(const Options& options) {
    const auto patience_ns = static_cast<std::int64_t>(options.patience_seconds * 1e9);
    const why::Job job = why::read_job(options.folder);
    for (const std::string& complaint : job.complaints)
        std::cerr << "ddp-why: " << libddp::printable(complaint) << '\n';
    libddp::TextOut text;
    for (const record::Group& group : job.groups) tell(text, group, patience_ns);
    libddp::write_output(text.str());
    write_summary(options, job, patience_ns);
    if (job.groups.empty())
        throw std::runtime_error("there is no record of a group of several ranks in " +
                                 options.folder);
    if (!options.trace.empty())
        why::write_trace(options.trace, job.processes, job.groups,
                         options.steps.empty() ? why::Steps{} : why::parse_steps(options.steps));
}

// Help and the version go to standard output, and complaints to standard error.
int end_with(const CLI::App& app, const CLI::Error& wanted) {
    libddp::TextOut text;
    const int status = app.exit(wanted, text, std::cerr);
    libddp::write_output(text.str());
    return status;
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Reads the records of a job and says which rank holds it up, and why.", "ddp-why");
    app.set_version_flag("--version", "ddp-why " DDP_VERSION);
    app.add_option("DIR", options.folder, "The folder of `ddprun --record DIR`, or of DDP_RECORD")
        ->required()
        ->check(CLI::ExistingDirectory);
    app.add_option("--patience", options.patience_seconds,
                   "Waits that are shorter are nobody's fault")
        ->check(CLI::NonNegativeNumber)
        ->type_name("SECONDS")
        ->capture_default_str();
    app.add_option("--trace", options.trace,
                   "Write a timeline of all ranks, for Perfetto or chrome://tracing")
        ->type_name("FILE");
    app.add_option("--steps", options.steps,
                   "The steps of the timeline, as 3-7; otherwise all that the records hold")
        ->type_name("STEPS");
    app.add_option("--json", options.json, "Write what the records say, for programs")
        ->type_name("FILE");
    app.add_option("--report", options.report,
                   "Write a page that shows the job; needs Python's plotly")
        ->type_name("FILE");
    try {
        try {
            app.parse(argc, argv);
        } catch (const CLI::Error& wanted) {
            return end_with(app, wanted);
        }
        run(options);
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "ddp-why: " << libddp::printable(error.what(), "\n") << '\n';
        return 1;
    }
}
