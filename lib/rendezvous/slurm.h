// The two compressed lists of Slurm's environment that discovery needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace libddp {

// The first host of a list such as "n[003-007,9],x1": "n003". nullopt: malformed.
std::optional<std::string> first_slurm_host(std::string_view nodelist);

// The tasks on the node with this index, of a list such as "2(x3),1": 2, 2, 2, 1. nullopt: malformed or no such node.
std::optional<std::int32_t> slurm_tasks_on_node(std::string_view tasks_per_node, std::int64_t node);

}  // namespace libddp
