// ddp-why: reads the records of a job and says who holds it up, and why. docs/record.md is its manual.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "record/cause.h"

namespace {

namespace record = libddp::record;

// Waits that are shorter are nobody's fault.
constexpr double kPatienceSeconds = 1;

struct Options {
    std::string folder;
    double patience_seconds = kPatienceSeconds;
};

void tell(const record::Group& group, const Options& options) {
    const auto patience_ns = static_cast<std::int64_t>(options.patience_seconds * 1e9);
    const auto cause = record::find_cause(group, patience_ns);
    std::cout << "group '" << group.name << "': " << (cause ? cause->sentence : "no rank waits for another") << '\n';
    for (const std::string& line : record::rank_lines(group)) std::cout << "  " << line << '\n';
}

void run(const Options& options) {
    std::vector<std::string> complaints;
    const auto processes = record::read_records(options.folder, complaints);
    for (const std::string& complaint : complaints) std::cerr << "ddp-why: " << complaint << '\n';
    const auto groups = record::find_groups(processes, record::read_sights(options.folder));
    if (groups.empty()) throw std::runtime_error("there is no record of a group of several ranks in " + options.folder);
    for (const record::Group& group : groups) tell(group, options);
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
    CLI11_PARSE(app, argc, argv);
    try {
        run(options);
        return 0;
    } catch (const std::exception& error) {
        std::cerr << "ddp-why: " << error.what() << '\n';
        return 1;
    }
}
