// The state of a hook, or of another owner, as a file in the safetensors format: 8 bytes with the
// length of a JSON header, the header, and then the arrays. What safetensors does not know of
// (hook, world, rank, numbers, checksum) is in its "__metadata__".
#pragma once

#include <string>
#include <vector>

#include "core/param_table.h"
#include "hooks/state.h"

namespace libddp {

// The owners of states in files, as messages name them.
struct StateKind {
    const char* format;
    const char* owner;
    const char* writer;
};
inline constexpr StateKind kStateOfHook{"libddp-hook-state", "a hook", "ddp_hook_state_save"};

// The owner of a state.
struct HookStateOwner {
    std::string hook;
    std::int32_t rank = 0, world = 1;
    StateKind kind = kStateOfHook;
};

// Arrays on a device are fetched, which may take so long. Throws TIMEOUT.
std::vector<std::byte> write_hook_state(const HookState& state, const HookStateOwner& owner,
                                        const ParamTable& table, std::int64_t timeout_ms);

// The arrays point into `file`. shared_only: those that belong to one rank are left out, and rank
// and world may be others. Throws INVALID_ARGUMENT, naming what is wrong.
HookState read_hook_state(const std::byte* file, std::size_t size, const HookStateOwner& owner,
                          const ParamTable& table, bool shared_only);

}  // namespace libddp
