// Loads backends from shared objects.
#pragma once

#include <string>

#include "ddp/backend.h"

namespace libddp {

// The backend of libddp-NAME.so, from the folders of DDP_MODULE_PATH and then "ddp/" beside this library. A module
// stays loaded. Null if there is none; *searched then says where it was looked for and why a file that was there did
// not load.
const ddp_backend* load_module(const std::string& name, std::string* searched);

}  // namespace libddp
