// Reads rank, world size and rendezvous address from the environment that a launcher set up.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace libddp {

struct JobEnvironment {
    std::string launcher;  // "ddprun", "torchrun", "openmpi", "pmi", "slurm", "kubernetes", "variables"
    std::int32_t rank = -1;
    std::int32_t world_size = -1;
    std::int32_t local_rank = 0;
    std::int32_t local_world_size = 1;
    std::string store_uri;          // "tcp://host:port" or "file:///path"
    bool rank0_hosts_store = true;  // false: the launcher runs the server
    std::int64_t restart = 0;       // how often the launcher has restarted the job
};

using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;

// The process's own environment.
std::optional<std::string> process_env(const std::string& name);

// The timeout of groups that are given none: DDP_TIMEOUT_MS, or 300,000. Throws INVALID_ARGUMENT if that is no whole
// number of milliseconds from 1.
std::int64_t default_timeout_ms(const GetEnv& get = process_env);

// Throws INVALID_ARGUMENT or NOT_FOUND with a sentence that names the variables that are missing or malformed.
JobEnvironment discover_environment(const GetEnv& get = process_env);

// False where discover_environment throws NOT_FOUND. Throws INVALID_ARGUMENT as it does.
bool launched(const GetEnv& get = process_env);

}  // namespace libddp
