// ddprun's command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "environment.h"
#include "loop.h"
#include "output.h"
#include "placement.h"
#include "rendezvous.h"
#include "why/trace.h"

namespace ddprun {

inline constexpr int kLauncherError = 1;
inline constexpr int kUsageError = 2;

struct Options {
    int local_ranks = 1;
    int nodes = 1;
    int node_rank = 0;
    std::optional<Endpoint> rendezvous;  // --rdzv
    std::string bind;                    // "": by default 127.0.0.1, or the host of --rdzv
    std::string secret_file;
    int max_restarts = 0;
    std::optional<int> min_ranks;  // --min-ranks: the job is elastic
    std::optional<int> max_ranks;  // of the whole job
    // --store: of a job that another ddprun, or none, hosts; "": hosts one
    std::string store;
    Placing placing = Placing::kNone;
    Milliseconds report_time{10'000};
    Milliseconds grace{5000};
    Milliseconds node_timeout{20'000};
    Milliseconds join_time = kJoinTime;  // how long nodes wait for each other
    OutputStyle style;
    std::string log_dir;
    std::string record_dir;  // "": records go with the job
    std::string trace_file;  // "": none
    why::Steps trace_steps;
    std::optional<Endpoint> metrics;  // --metrics; its port may be 0
    std::string report;               // "": none
    Variables environment;
    std::vector<std::string> program;
    int checkpoint_on = 0, stop_on = 0;  // signals to ddprun that are votes; 0: none
    bool dry_run = false;                // show what would be started
    std::optional<std::string> status;   // --status: show this job instead; "": the only one
    bool once = false;
};

// Empty if ddprun is to end now, with `status`: what had to be said has been printed.
std::optional<Options> parse_options(int argc, char** argv, int& status);

}  // namespace ddprun
