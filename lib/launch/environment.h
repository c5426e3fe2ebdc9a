// Reads rank, world size and rendezvous address from the environment that a launcher set up.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace libddp {

struct JobEnvironment {
    // "ddprun", "torchrun", "openmpi", "pmi", "slurm", "kubernetes", "variables"
    std::string launcher;
    std::int32_t rank = -1;
    std::int32_t world_size = -1;
    std::int32_t local_rank = 0;
    std::int32_t local_world_size = 1;
    // "tcp://host:port" or "file:///path"; "": none, in a world of one
    std::string store_uri;
    bool rank0_hosts_store = true;  // false: the launcher runs the server
    // the job's name, as the launcher tells all its ranks; "": it has none
    std::string id;
    std::int64_t restart = 0;  // how often the launcher has restarted the job
    // a sentence for the log: this job is smaller than the one around it; "": it is not
    std::string doubt;
};

using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;

// The process's own environment.
std::optional<std::string> process_env(const std::string& name);

// The timeout of groups that are given none: DDP_TIMEOUT_MS, or 300,000. Throws INVALID_ARGUMENT if
// that is no whole number of milliseconds from 1.
std::int64_t default_timeout_ms(const GetEnv& get = process_env);

// The launcher's settings of an elastic job. 0: nothing.
struct ElasticEnvironment {
    std::int32_t min_world = 0;    // DDP_ELASTIC_MIN_WORLD
    std::int32_t max_world = 0;    // DDP_ELASTIC_MAX_WORLD
    std::int32_t first_world = 0;  // DDP_ELASTIC_FIRST_WORLD: how many it starts together
};
// Throws INVALID_ARGUMENT if one of these is no number of ranks.
ElasticEnvironment elastic_environment(const GetEnv& get = process_env);

// Throws INVALID_ARGUMENT or NOT_FOUND with a sentence that names the variables that are missing,
// malformed, or contradict each other. docs/ddprun.md, "Other launchers", has the rule.
JobEnvironment discover_environment(const GetEnv& get = process_env);

// The error of a job of several ranks without a store_uri.
[[noreturn]] void refuse_without_address(const JobEnvironment& job);

// False where discover_environment throws NOT_FOUND. Throws INVALID_ARGUMENT as it does.
bool launched(const GetEnv& get = process_env);

// The two compressed lists of Slurm's environment that discovery needs.

// The first host of a list such as "n[003-007,9],x1": "n003". nullopt: malformed.
std::optional<std::string> first_slurm_host(std::string_view nodelist);

// The tasks on the node with this index, of a list such as "2(x3),1": 2, 2, 2, 1. nullopt:
// malformed or no such node.
std::optional<std::int32_t> slurm_tasks_on_node(std::string_view tasks_per_node, std::int64_t node);

}  // namespace libddp
