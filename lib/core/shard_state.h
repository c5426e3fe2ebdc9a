// Saves of shards: a folder with a file of each rank (core/state_file.h), and an index that names
// them. Whatever fails, the index names a complete save.
#pragma once

#include <string>
#include <vector>

#include "core/context.h"
#include "core/state_file.h"

namespace libddp {

// Throws INVALID_ARGUMENT, also if elements are in `others` already.
void check_state_array(const StateArray& array, const ParamTable& table,
                       const std::vector<StateArray>& others);

// Collective. Semantics: include/ddp/shard_state.h.
void save_shards(const Context& context, const std::vector<StateArray>& arrays,
                 const std::string& folder, const std::string& note);
// Collective. The note.
std::string load_shards(const Context& context, const std::vector<StateArray>& arrays,
                        const std::string& folder);

}  // namespace libddp
