// The command line of ddp-bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

enum class Command { allreduce, replay, grad_ready, join, transfer, models, predict, peers };

// The settings of a program's group, context and hook.
struct Settings {
    unsigned groups = 1;  // that take turns
    double bucket_mb = 25;
    double first_bucket_mb = 1;
    std::string hook;  // empty: libddp's default
    std::string hook_options;
    bool operator==(const Settings&) const = default;
};

// replay measures with the default hook, and if there is another one also with that.
struct Options : Settings {
    Command command = Command::models;

    // Options of every benchmark.
    int world = 2;
    // as parse_backend reads them; allreduce compares several
    std::vector<std::string> backends{"auto"};
    std::string backend_options;
    std::string iters = "auto";
    double seconds = 1.5;   // of measuring a row
    double timeout = 1800;  // seconds that the ranks may take in all
    bool json = false;
    std::string csv;  // also write the rows to this file

    // allreduce
    std::vector<std::uint64_t> bytes{4096, 65536, 1048576, 4194304, 26214400};
    std::string dtype = "f32";
    std::vector<std::string> memory{"own"};  // "own", "group"
    // of each size, under way together; 0: one for each of the groups
    unsigned pieces = 0;

    std::string device = "cpu";  // of the gradients: "cpu", "cuda", "cuda:N"

    // replay, transfer and models
    std::string model = "resnet50";
    double compute_ms = 0;
    bool sleep = false;  // instead of computing
    // also run the loop with all gradients announced after the backward pass
    bool without_overlap = false;
    std::vector<unsigned> sync_every;  // also run a loop for each: averages in one of so many steps
    bool copy = false;
    bool find_unused = false;
    bool votes = false;
    bool norm = false;
    bool optimizer = false;
    std::vector<double> also_mb;  // also run the loop with these bucket sizes
    bool autotune = false;        // also run it with the one that libddp finds
    std::string trace;            // write a trace of some more steps to this file

    // predict
    std::vector<double> bucket_mbs{25};
    bool advise = false;  // search for settings
    std::string network = "25gbit";
    std::string measured;  // a file of rows of allreduce
    std::vector<std::string> schedules{"finalize"};
    std::vector<double> piece_mbs{0};  // 0: buckets are not cut
    std::string agreement = "plan";
    std::string save_plan;  // write the best bucket plan to this file
    int ranks_a_host = 1;
    double forward_ms = -1;  // -1: half of the backward pass
    double optimizer_ms = 0;
    double jitter = 0;
    double straggler = 0;
    double cores = 0;
    double communication_cores = 0;

    // grad-ready
    int params = 1000;
    int elements = 256;

    std::int64_t iterations() const;  // 0: as many as fit into `seconds`
};

// Returns what the command line says. Where it asks for help or is wrong, prints that and ends the
// process.
Options parse_options(int argc, const char* const* argv);

}  // namespace bench
