#include "options.h"

#include <ddp/status.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "util/printable.h"
#include "util/text.h"
#include "write_text.h"

namespace ddprun {
namespace {

constexpr int kMostRanks = 4096;
constexpr int kMostNodes = 4096;
constexpr int kMostElasticRanks = kMostRanks * kMostNodes;
constexpr int kMostRestarts = 1'000'000;
constexpr double kShortestTimeout = 0.001;
constexpr double kLongestTimeout = 10.0 * 365 * 86'400;
constexpr double kLongestReport = 86'400;
constexpr double kLongestGrace = 86'400;
// Signs of life come four times a second, and a busy node may miss a few.
constexpr double kShortestNodeTimeout = 1;
constexpr double kLongestNodeTimeout = 86'400;

// Some hundred steps of a large model: 16 MiB for each rank.
constexpr const char* kTracedEvents = "262144";

constexpr const char* kDescription =
    "Starts the ranks of a data-parallel program, tags what they print, and ends them all when one "
    "fails.";
constexpr const char* kFooter =
    "Examples:\n"
    "  ddprun -n 4 ./trainer --epochs 10\n"
    "  ddprun --nnodes 2 --node-rank 0 -n 4 --rdzv host0:29500 --secret-file job.secret ./trainer\n"
    "  ddprun -n 6 --min-ranks 2 --max-ranks 4 --max-restarts 10 ./elastic-trainer\n"
    "  ddprun --status\n"
    "Everything after the program belongs to the program.";

// The options as CLI11 reads them, before they have been checked as a whole.
struct Raw {
    std::string rendezvous;
    std::string metrics;
    std::string status;
    std::string placing = "none";
    std::optional<double> timeout_seconds;
    double report_seconds = 10;
    double grace_seconds = 5;
    double node_timeout_seconds = 20;
    bool no_tag = false;
    std::string trace_steps;
    std::vector<std::string> environment;
};

void require(bool condition, const std::string& sentence) {
    if (!condition) throw std::invalid_argument(sentence);
}

class Help : public CLI::Formatter {
public:
    std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
        return "Usage: ddprun [OPTIONS] PROGRAM [ARGUMENTS...]\n   or: ddprun --status [JOB]\n";
    }
};

// CLI::Range takes "nan", which is neither too small nor too large.
CLI::Validator seconds(double least, double most) {
    const CLI::Range range(least, most);
    return CLI::Validator(
        [range](std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && std::isnan(value))
                return "Value " + text + " is no number";
            return range(text);
        },
        range.get_description());
}

void describe(CLI::App& app, Options& options, Raw& raw) {
    app.set_version_flag("--version", std::string("ddprun ") + ddp_version());
    app.footer(kFooter);
    app.formatter(std::make_shared<Help>());
    app.prefix_command();
    app.add_option("-n", options.local_ranks, "Ranks to start on this node")
        ->check(CLI::Range(1, kMostRanks))
        ->type_name("RANKS")
        ->capture_default_str();
    app.add_option("--nnodes", options.nodes, "Nodes of the job")
        ->check(CLI::Range(1, kMostNodes))
        ->type_name("NODES")
        ->capture_default_str();
    app.add_option("--node-rank", options.node_rank, "Which of the nodes this is, from 0")
        ->check(CLI::Range(0, kMostNodes - 1))
        ->type_name("NODE")
        ->capture_default_str();
    app.add_option("--rdzv", raw.rendezvous, "Where node 0 hosts the store, the same on every node")
        ->type_name("HOST:PORT");
    app.add_option("--bind", options.bind,
                   "Address that the store binds, if not the host of --rdzv or 127.0.0.1")
        ->type_name("ADDRESS");
    app.add_option("--secret-file", options.secret_file,
                   "File with the job secret, the same on every node")
        ->type_name("FILE");
    app.add_option(
           "--max-restarts", options.max_restarts,
           "Restart the job after a failure, up to this often; with --min-ranks, single ranks")
        ->check(CLI::Range(0, kMostRestarts))
        ->type_name("TIMES")
        ->capture_default_str();
    app.add_option("--min-ranks", options.min_ranks,
                   "The job is elastic: it goes on without ranks that fail, as long as so many of "
                   "this node are left")
        ->check(CLI::Range(1, kMostRanks))
        ->type_name("RANKS");
    app.add_option("--max-ranks", options.max_ranks,
                   "Of an elastic job: more ranks than these wait as spares, until one is lost")
        ->check(CLI::Range(1, kMostElasticRanks))
        ->type_name("RANKS");
    app.add_option("--store", options.store,
                   "Join the elastic job whose ranks meet here: tcp:// and the --rdzv of its "
                   "ddprun, or etcd://, etcds:// or file://")
        ->type_name("URI");
    app.add_option("--place", raw.placing,
                   "Give ranks processors: none, numa (those of a NUMA node), cores (cores of "
                   "their own, at least 2)")
        ->check(CLI::IsMember({"none", "numa", "cores"}))
        ->type_name("HOW")
        ->capture_default_str();
    app.add_option("--timeout", raw.timeout_seconds,
                   "How long nodes wait for each other, and the timeout of groups that the program "
                   "gives none (DDP_TIMEOUT_MS), instead of 300")
        ->check(seconds(kShortestTimeout, kLongestTimeout))
        ->type_name("SECONDS");
    app.add_option(
           "--report-time", raw.report_seconds,
           "Longest time after a failure in which other ranks that print or compute may report it")
        ->check(seconds(0.0, kLongestReport))
        ->type_name("SECONDS")
        ->capture_default_str();
    app.add_option("--grace", raw.grace_seconds, "Time between SIGTERM and SIGKILL")
        ->check(seconds(0.0, kLongestGrace))
        ->type_name("SECONDS")
        ->capture_default_str();
    const CLI::CheckedTransformer signals(std::map<std::string, int>{{"SIGUSR1", SIGUSR1},
                                                                     {"SIGUSR2", SIGUSR2},
                                                                     {"SIGHUP", SIGHUP},
                                                                     {"SIGTERM", SIGTERM},
                                                                     {"SIGINT", SIGINT}});
    app.add_option("--checkpoint-on", options.checkpoint_on,
                   "This signal to ddprun is a vote to write a checkpoint (DDP_VOTE_CHECKPOINT)")
        ->transform(signals)
        ->type_name("SIGNAL");
    app.add_option(
           "--stop-on", options.stop_on,
           "This signal to ddprun is a vote to stop (DDP_VOTE_STOP); the second one has its "
           "usual effect")
        ->transform(signals)
        ->type_name("SIGNAL");
    app.add_option("--node-timeout", raw.node_timeout_seconds,
                   "Time without a sign of life after which a node is lost")
        ->check(seconds(kShortestNodeTimeout, kLongestNodeTimeout))
        ->type_name("SECONDS")
        ->capture_default_str();
    auto* no_tag =
        app.add_flag("--no-tag", raw.no_tag, "Pass output on as it is, without \"[rank] \"");
    app.add_flag("--timestamps", options.style.timestamps, "Put the time (UTC) before each line")
        ->excludes(no_tag);
    app.add_option("--log-dir", options.log_dir, "Also write each rank's output to DIR/rank-N.log")
        ->type_name("DIR");
    app.add_option("--record", options.record_dir,
                   "Keep the records of the ranks in DIR, where ddp-why and --trace read them")
        ->type_name("DIR");
    auto* trace = app.add_option("--trace", options.trace_file,
                                 "Write a timeline of the ranks of this node to FILE, for Perfetto "
                                 "or chrome://tracing")
                      ->type_name("FILE");
    app.add_option("--trace-steps", raw.trace_steps,
                   "The steps of the timeline, as 3-7, instead of the last ones")
        ->type_name("STEPS")
        ->needs(trace);
    app.add_option("--metrics", raw.metrics,
                   "Serve metrics for Prometheus at http://HOST:PORT/metrics; port 0 is a free "
                   "one, which ddprun prints")
        ->type_name("HOST:PORT");
    app.add_option("--report", options.report,
                   "Write a page that shows the job, when it has ended; needs Python's plotly")
        ->type_name("FILE");
    app.add_option("--env", raw.environment, "Set a variable for the ranks; may be repeated")
        ->type_name("NAME=VALUE")
        ->allow_extra_args(false);
    app.add_flag("--dry-run", options.dry_run,
                 "Print each rank's variables and command, and start nothing");
    auto* status =
        app.add_option("--status", raw.status,
                       "Start nothing; show the ranks of a job every second: its ddprun's pid, or "
                       "its folder of records; by default the only job of this user")
            ->type_name("JOB")
            ->expected(0, 1);
    app.add_flag("--once", options.once, "Show them one time")->needs(status);
}

void add_names_of_torchrun(CLI::App& app, Options& options, Raw& raw) {
    const auto add = [&app](const char* names, auto& value, const char* type, const char* same) {
        return app.add_option(names, value, same)->type_name(type)->group("As torchrun names them");
    };
    add("--nproc-per-node,--nproc_per_node", options.local_ranks, "RANKS", "The same as -n")
        ->check(CLI::Range(1, kMostRanks));
    add("--node_rank", options.node_rank, "NODE", "The same as --node-rank")
        ->check(CLI::Range(0, kMostNodes - 1));
    add("--rdzv-endpoint,--rdzv_endpoint", raw.rendezvous, "HOST:PORT", "The same as --rdzv");
    add("--max_restarts", options.max_restarts, "TIMES", "The same as --max-restarts")
        ->check(CLI::Range(0, kMostRestarts));
    add("--log_dir", options.log_dir, "DIR", "The same as --log-dir");
}

Variables check_environment(const std::vector<std::string>& texts) {
    Variables variables;
    for (const std::string& text : texts) {
        const std::size_t equals = text.find('=');
        require(equals != std::string::npos && equals > 0,
                "--env: '" + text + "' is not NAME=VALUE");
        const std::string name = text.substr(0, equals);
        require(!is_reserved_variable(name), "--env: " + name + " is set by ddprun itself");
        variables.emplace_back(name, text.substr(equals + 1));
    }
    return variables;
}

// How many letters have to be put in, left out or replaced to make one word of the other.
std::size_t distance(const std::string& from, const std::string& to) {
    std::vector<std::size_t> row(to.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= from.size(); ++i) {
        std::size_t corner = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= to.size(); ++j) {
            const std::size_t replaced = corner + (from[i - 1] == to[j - 1] ? 0 : 1);
            corner = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
        }
    }
    return row.back();
}

// "; did you mean --nnodes?", or "" if no option is similar.
std::string did_you_mean(const CLI::App& app, const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    std::string nearest;
    std::size_t least = std::max<std::size_t>(1, name.size() / 4) + 1;
    for (const CLI::Option* option : app.get_options()) {
        for (const std::string& known : option->get_lnames()) {
            const std::size_t away = distance(name, "--" + known);
            if (away < least) {
                least = away;
                nearest = "--" + known;
            }
        }
    }
    return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

// mpirun's name for -n. CLI11 would take the p for a number.
void refuse_np(int argc, char** argv) {
    for (int i = 1; i < argc && argv[i][0] == '-' && std::string(argv[i]) != "--"; ++i)
        require(std::string(argv[i]) != "-np", "-np is an option of mpirun; ddprun has -n");
}

// Checks the rest of the command line: the program and its arguments, after "--" if the user wrote
// that.
std::vector<std::string> check_program(const CLI::App& app, std::vector<std::string> rest) {
    const bool separated = !rest.empty() && rest.front() == "--";
    if (separated) rest.erase(rest.begin());
    require(!rest.empty() && !rest.front().empty(), "no program given: ddprun -n 4 ./trainer");
    require(separated || rest.front().front() != '-',
            "unknown option " + rest.front() + did_you_mean(app, rest.front()));
    return rest;
}

why::Steps parse_trace_steps(const std::string& text) {
    try {
        return why::parse_steps(text);
    } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(std::string("--trace-steps: ") + error.what());
    }
}

void add_default(Variables& variables, const std::string& name, const std::string& value) {
    const bool given = std::any_of(variables.begin(), variables.end(),
                                   [&](const auto& variable) { return variable.first == name; });
    if (!given) variables.emplace_back(name, value);
}

void check_metrics(Options& options, const std::string& text) {
    if (text.empty()) return;
    options.metrics = parse_endpoint(text, 0);
    require(options.metrics.has_value(),
            "--metrics: '" + text +
                "' is not HOST:PORT (an IPv6 address in brackets, a port from 0 to 65535)");
}

void check_nodes(Options& options, const std::string& rendezvous) {
    require(options.node_rank < options.nodes, "--node-rank " + std::to_string(options.node_rank) +
                                                   ": must be less than --nnodes " +
                                                   std::to_string(options.nodes));
    if (!rendezvous.empty()) {
        options.rendezvous = parse_endpoint(rendezvous);
        require(options.rendezvous.has_value(),
                "--rdzv: '" + rendezvous +
                    "' is not HOST:PORT (an IPv6 address in brackets, a port from 1 to 65535)");
    }
    require(options.nodes == 1 || options.rendezvous,
            "--nnodes " + std::to_string(options.nodes) +
                " needs --rdzv HOST:PORT, where node 0 hosts the store");
}

// Ranks of an elastic job meet in a store of their own accord, and take no number from ddprun.
void check_elastic(Options& options) {
    const auto text = [](const std::optional<int>& number) { return std::to_string(*number); };
    if (!options.min_ranks) {
        require(!options.max_ranks, "--max-ranks is for elastic jobs: give --min-ranks, too");
        require(options.store.empty(), "--store is for elastic jobs: give --min-ranks, too");
        return;
    }
    require(*options.min_ranks <= options.local_ranks,
            "--min-ranks " + text(options.min_ranks) + " is more than the " +
                std::to_string(options.local_ranks) + " ranks of -n");
    require(!options.max_ranks || *options.max_ranks >= *options.min_ranks,
            "--max-ranks " + (options.max_ranks ? text(options.max_ranks) : "") +
                " is less than --min-ranks " + text(options.min_ranks));
    require(options.nodes == 1,
            "--min-ranks does not go with --nnodes: start a ddprun on each node, the first with "
            "--rdzv HOST:PORT, and the others with --store tcp://HOST:PORT");
    if (!options.store.empty()) {
        require(!options.rendezvous && options.bind.empty(),
                "--store does not go with --rdzv and --bind: this ddprun hosts no store");
        const auto begins = [&](const char* scheme) { return options.store.starts_with(scheme); };
        require(begins("tcp://") || begins("file://") || begins("etcd://") || begins("etcds://"),
                "--store: '" + options.store +
                    "' begins with none of tcp://, file://, etcd:// and etcds://");
    }
    add_default(options.environment, "DDP_ELASTIC_MIN_WORLD", text(options.min_ranks));
    if (options.max_ranks)
        add_default(options.environment, "DDP_ELASTIC_MAX_WORLD", text(options.max_ranks));
    if (options.store.empty())
        add_default(options.environment, "DDP_ELASTIC_FIRST_WORLD",
                    std::to_string(options.local_ranks));
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& status) {
    Options options;
    Raw raw;
    CLI::App app(kDescription, "ddprun");
    describe(app, options, raw);
    add_names_of_torchrun(app, options, raw);
    try {
        refuse_np(argc, argv);
        app.parse(argc, argv);
        if (app.count("--status") > 0) {
            require(app.remaining().empty(), "--status starts no program, and takes one JOB");
            options.status = raw.status;
            return options;
        }
        options.program = check_program(app, app.remaining());
        check_nodes(options, raw.rendezvous);
        check_metrics(options, raw.metrics);
        options.environment = check_environment(raw.environment);
        check_elastic(options);
        require(options.stop_on == 0 || options.stop_on != options.checkpoint_on,
                "--checkpoint-on and --stop-on are the same signal");
        if (!raw.trace_steps.empty()) options.trace_steps = parse_trace_steps(raw.trace_steps);
    } catch (const CLI::Success& wanted) {
        libddp::TextOut text;
        status = app.exit(wanted, text, std::cerr);
        libddp::write_output(text.str());
        return std::nullopt;
    } catch (const std::exception& error) {
        std::cerr << "ddprun: " << libddp::printable(error.what(), "\n")
                  << "\nddprun: see ddprun --help\n";
        status = kUsageError;
        return std::nullopt;
    }
    if (raw.placing == "numa") options.placing = Placing::kNuma;
    if (raw.placing == "cores") options.placing = Placing::kCores;
    if (raw.timeout_seconds) {
        const auto timeout = std::llround(*raw.timeout_seconds * 1000);
        options.environment.emplace_back("DDP_TIMEOUT_MS", std::to_string(timeout));
        options.join_time = Milliseconds(timeout);
    }
    if (!options.trace_file.empty() && !std::getenv(kRecordEvents))
        add_default(options.environment, kRecordEvents, kTracedEvents);
    options.report_time = Milliseconds(std::llround(raw.report_seconds * 1000));
    options.grace = Milliseconds(std::llround(raw.grace_seconds * 1000));
    options.node_timeout = Milliseconds(std::llround(raw.node_timeout_seconds * 1000));
    options.style.tags = !raw.no_tag;
    return options;
}

}  // namespace ddprun
