// Backends by name: built in, registered by the program, or loaded from a module libddp-NAME.so.
#pragma once

#include <string>

#include "ddp/backend.h"

namespace libddp {

// Throws INVALID_ARGUMENT, ALREADY_EXISTS or UNSUPPORTED.
void register_backend(const ddp_backend* backend);

constexpr const char* kAutoBackend = "auto";

// Null for "auto": what that is depends on where the ranks are. Throws NOT_FOUND with the names
// that exist and the folders that were searched.
const ddp_backend* find_backend(const std::string& name);

// The built-in backend that suits where the ranks of a group are, the same on every rank. why: a
// few words for the log.
const ddp_backend* choose_backend(const ddp_backend_host& host, std::string& why);

}  // namespace libddp
