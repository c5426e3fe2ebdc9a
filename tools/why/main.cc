// ddp-why: reads the records of a job and says who holds it up, and why. docs/record.md is its manual.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "record/cause.h"
#include "record/lateness.h"
#include "trace.h"

namespace {

namespace record = libddp::record;

// Waits that are shorter are nobody's fault.
constexpr double kPatienceSeconds = 1;

struct Options {
    std::string folder;
    double patience_seconds = kPatienceSeconds;
    std::string trace, steps;
};

void tell_pace(const record::Pace& pace) {
    std::cout << (pace.sentence.empty() ? "no rank is slow" : pace.sentence) << '\n'
              << "  of an average step of " << record::duration_text(pace.step) << " (" << pace.steps << " steps, "
              << pace.bytes << " bytes in collectives):\n";
    for (const record::Lateness& rank : pace.ranks)
        std::cout << "  rank " << rank.rank << ": others wait for it " << record::duration_text(rank.late)
                  << " (in its hook " << record::duration_text(rank.in_hook) << "), it waits for others "
                  << record::duration_text(rank.waits) << ", collectives take " << record::duration_text(rank.transfer)
                  << '\n';
}

void tell(const std::vector<record::ProcessRecord>& processes, const record::Group& group, const Options& options) {
    const auto patience_ns = static_cast<std::int64_t>(options.patience_seconds * 1e9);
    const auto cause = record::find_cause(group, patience_ns);
    std::cout << "group '" << group.name << "': " << (cause ? cause->sentence : "no rank waits for another") << '\n';
    for (const std::string& line : record::rank_lines(group)) std::cout << "  " << line << '\n';
    if (const auto pace = record::find_pace(processes, group)) tell_pace(*pace);
}

void run(const Options& options) {
    std::vector<std::string> complaints;
    const auto processes = record::read_records(options.folder, complaints);
    for (const std::string& complaint : complaints) std::cerr << "ddp-why: " << complaint << '\n';
    const auto groups = record::find_groups(processes, record::read_sights(options.folder));
    if (groups.empty()) throw std::runtime_error("there is no record of a group of several ranks in " + options.folder);
    for (const record::Group& group : groups) tell(processes, group, options);
    if (!options.trace.empty())
        why::write_trace(options.trace, processes, groups,
                         options.steps.empty() ? why::Steps{} : why::parse_steps(options.steps));
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Reads the records of a job and says which rank holds it up, and why.", "ddp-why");
    app.add_option("DIR", options.folder, "The folder of `ddprun --record DIR`, or of DDP_RECORD")
        ->required()
        ->check(CLI::ExistingDirectory);
    app.add_option("--patience", options.patience_seconds, "Waits that are shorter are nobody's fault")
        ->check(CLI::NonNegativeNumber)
        ->type_name("SECONDS")
        ->capture_default_str();
    app.add_option("--trace", options.trace, "Write a timeline of all ranks, for Perfetto or chrome://tracing")
        ->type_name("FILE");
    app.add_option("--steps", options.steps, "The steps of the timeline, as 3-7; otherwise all that the records hold")
        ->type_name("STEPS");
    CLI11_PARSE(app, argc, argv);
    try {
        run(options);
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "ddp-why: " << error.what() << '\n';
        return 1;
    }
}
