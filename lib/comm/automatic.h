// What "auto" means.
#pragma once

#include <string>

#include "ddp/backend.h"

namespace libddp {

// The built-in backend that suits where the ranks of a group are, the same on every rank. why: a few words for the log.
const ddp_backend* choose_backend(const ddp_backend_host& host, std::string& why);

}  // namespace libddp
