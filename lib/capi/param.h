// The description of a parameter or buffer, as context.h and in_place.h have it.
#pragma once

#include <cstdint>

#include "core/param_table.h"
#include "ddp/context.h"

namespace libddp {

constexpr std::uint32_t kParamFlags = DDP_PARAM_IGNORED | DDP_PARAM_DELAYED | DDP_PARAM_SPARSE |
                                      DDP_PARAM_FACTORED | DDP_PARAM_IN_PLACE;

// flags: those that are allowed; 0 for a buffer. Throws INVALID_ARGUMENT.
Param read_param(const ddp_param_desc* desc, std::uint32_t flags);

// Whether it is an address in memory of ddp_mem_alloc.
bool is_of_mem_alloc(const void* memory);

}  // namespace libddp
