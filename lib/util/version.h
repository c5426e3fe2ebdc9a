// The version as text, made from the macros of the public header.
#pragma once

#include "ddp/status.h"

#define LIBDDP_TEXT_(x) #x
#define LIBDDP_TEXT(x) LIBDDP_TEXT_(x)
#define LIBDDP_VERSION             \
    LIBDDP_TEXT(DDP_VERSION_MAJOR) \
    "." LIBDDP_TEXT(DDP_VERSION_MINOR) "." LIBDDP_TEXT(DDP_VERSION_PATCH)

namespace libddp {

inline constexpr const char* kVersion = LIBDDP_VERSION;

}  // namespace libddp
