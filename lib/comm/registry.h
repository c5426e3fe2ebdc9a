// Backends by name: built in, registered by the program, or loaded from a module libddp-NAME.so.
#pragma once

#include <string>

#include "ddp/backend.h"

namespace libddp {

// Throws INVALID_ARGUMENT, ALREADY_EXISTS or UNSUPPORTED.
void register_backend(const ddp_backend* backend);

constexpr const char* kAutoBackend = "auto";

// Null for "auto": what that is depends on where the ranks are (automatic.h). Throws NOT_FOUND with the names that exist and the folders that were searched.
const ddp_backend* find_backend(const std::string& name);

}  // namespace libddp
