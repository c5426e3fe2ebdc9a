// The variables of a launcher, a line "NAME=VALUE" each.
#include "launch/environment.h"

#include <map>

#include "fuzz/target.h"
#include "rendezvous/uri.h"

namespace fuzz::environment {

using namespace libddp;

DDP_FUZZ_TARGET(environment, input) {
    std::map<std::string, std::string> variables;
    for (Reader bytes(input); !bytes.empty();) {
        Reader line(bytes.until('\n'));
        const std::string name(line.until('='));
        variables[name] = line.rest();
    }
    const GetEnv get = [&](const std::string& name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    accepts([&] { check(default_timeout_ms(get) > 0, "a timeout is not positive"); });
    JobEnvironment job;
    const bool found = accepts([&] { job = discover_environment(get); });
    bool says_launched = false;
    const bool says = accepts([&] { says_launched = launched(get); });
    check(found == (says && says_launched), "launched() and discover_environment() disagree");
    if (!found) return;
    check(!job.launcher.empty() && job.launcher.size() < 32,
          "a launcher has no name, or none for ddp_environment");
    check(0 <= job.rank && job.rank < job.world_size, "a rank is none of the world's");
    check(0 <= job.local_rank && job.local_rank < job.local_world_size,
          "a local rank is none of its host's");
    check(job.local_world_size <= job.world_size && job.restart >= 0, "a job cannot be");
    accepts([&] { parse_store_uri(job.store_uri); });
}

}  // namespace fuzz::environment
