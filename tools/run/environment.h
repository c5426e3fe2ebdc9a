// The variables that ranks find in their environment.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun {

using Variables = std::vector<std::pair<std::string, std::string>>;

// The job secret.
struct Secret {
    std::string text;
    // where ranks read it, so that it stands in the environment of none; "": no file holds it
    std::string file;
};

struct RankFacts {
    int rank = 0;
    int world_size = 1;
    int local_rank = 0;
    int local_world_size = 1;
    int restart = 0;
    int threads = 1;  // how many it can run at once
    std::string store_uri;
    Secret secret;
    std::string record_folder;  // "": nothing is recorded
    std::string votes{};        // where ddprun asks for them; "": nowhere
};

// How many events the record of a rank holds.
inline constexpr const char* kRecordEvents = "DDP_RECORD_EVENTS";

// Variables whose values the launcher alone decides.
bool is_reserved_variable(const std::string& name);

// The variables that ddprun sets for a rank: `extra` and the rank's facts.
Variables launcher_variables(const RankFacts& facts, const Variables& extra);

// The whole environment of a rank, "NAME=value": ddprun's own, with `extra` and then the rank's
// facts in place of what was there.
std::vector<std::string> rank_environment(const RankFacts& facts, const Variables& extra);

}  // namespace ddprun
