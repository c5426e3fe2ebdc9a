#include "environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "launch/vote_page.h"

namespace ddprun {
namespace {

constexpr const char* kThreads = "OMP_NUM_THREADS";
constexpr const char* kRecord = "DDP_RECORD";

std::map<std::string, std::string> own_environment() {
    std::map<std::string, std::string> variables;
    for (char** entry = environ; entry && *entry; ++entry) {
        const std::string text = *entry;
        const std::size_t equals = text.find('=');
        if (equals != std::string::npos)
            variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
    return variables;
}

Variables fact_variables(const RankFacts& facts) {
    return {
        {"DDP_RANK", std::to_string(facts.rank)},
        {"DDP_WORLD_SIZE", std::to_string(facts.world_size)},
        {"DDP_LOCAL_RANK", std::to_string(facts.local_rank)},
        {"DDP_LOCAL_WORLD_SIZE", std::to_string(facts.local_world_size)},
        {"DDP_STORE", facts.store_uri},
        {"DDP_STORE_HOSTED", "launcher"},
        {"DDP_SECRET", facts.secret.file.empty() ? facts.secret.text : ""},
        {"DDP_SECRET_FILE", facts.secret.file},
        {"DDP_RESTART", std::to_string(facts.restart)},
        {libddp::kVotesVariable, facts.votes},
        // The names that torchrun uses, for programs that read those.
        {"RANK", std::to_string(facts.rank)},
        {"WORLD_SIZE", std::to_string(facts.world_size)},
        {"LOCAL_RANK", std::to_string(facts.local_rank)},
        {"LOCAL_WORLD_SIZE", std::to_string(facts.local_world_size)},
    };
}

}  // namespace

bool is_reserved_variable(const std::string& name) {
    const Variables variables = fact_variables({});
    return std::any_of(variables.begin(), variables.end(),
                       [&](const auto& variable) { return variable.first == name; });
}

Variables launcher_variables(const RankFacts& facts, const Variables& extra) {
    Variables variables = extra;
    for (auto& variable : fact_variables(facts)) variables.push_back(std::move(variable));
    const auto given = [&extra](const char* name) {
        return std::any_of(extra.begin(), extra.end(),
                           [name](const auto& variable) { return variable.first == name; });
    };
    if (!facts.record_folder.empty() && !given(kRecord))
        variables.emplace_back(kRecord, facts.record_folder);
    // Without this every rank would start a thread a core, and n ranks n times as many threads as
    // there are cores.
    if (!std::getenv(kThreads) && !given(kThreads))
        variables.emplace_back(kThreads, std::to_string(facts.threads));
    return variables;
}

std::vector<std::string> rank_environment(const RankFacts& facts, const Variables& extra) {
    std::map<std::string, std::string> variables = own_environment();
    for (const auto& [name, value] : launcher_variables(facts, extra)) variables[name] = value;
    std::vector<std::string> result;
    result.reserve(variables.size());
    for (const auto& [name, value] : variables) result.emplace_back(name).append("=").append(value);
    return result;
}

}  // namespace ddprun
