// ddprun's command line, one argument a line.
#include <vector>

#include "fuzz/target.h"
#include "run/options.h"

namespace fuzz::run_options {

DDP_FUZZ_TARGET(run_options, input) {
    std::vector<std::string> arguments{"ddprun"};
    for (Reader bytes(input); !bytes.empty() && arguments.size() < 40;)
        arguments.emplace_back(bytes.until('\n'));
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int status = -1;
    const auto options =
        ddprun::parse_options(static_cast<int>(arguments.size()), argv.data(), status);
    if (!options) {
        check(status == 0 || status == ddprun::kUsageError, "ddprun ends with an unknown status");
        return;
    }
    check(options->local_ranks >= 1 && options->max_restarts >= 0, "a number is beyond its bounds");
    check(0 <= options->node_rank && options->node_rank < options->nodes,
          "a node is none of the job's");
    check(options->status.has_value() == options->program.empty(),
          "there is no program, or one that --status does not start");
    check(options->program.empty() || !options->program.front().empty(), "the program has no name");
    constexpr ddprun::Milliseconds day{86'400'000};
    for (const auto time : {options->grace, options->report_time, options->node_timeout})
        check(time.count() >= 0 && time <= day, "a time is beyond its bounds");
    for (const auto& [name, value] : options->environment)
        check(!name.empty() && name.find('=') == std::string::npos, "a variable has no name");
}

}  // namespace fuzz::run_options
