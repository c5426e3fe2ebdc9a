// File descriptors: when there are too few of them, also for a library below us that does not do without in good order.
#pragma once

#include <cstddef>
#include <string_view>

#include "ddp/status.h"

namespace libddp {

// Whether an errno value says that the process, or the machine, has no descriptor left.
bool lacks_descriptors(int error);
// What helps then: the end of a message.
inline constexpr const char* kRaiseOpenFiles = "; raise the limit of open files (ulimit -n)";

// Throws LIMIT unless the process can open this many more, as far as that can be told. Takes one while it counts, so that other
// threads hardly notice; they may take what it has counted, which leaves a small window. owner: "the store client", for the message.
void require_descriptors(std::size_t count, std::string_view owner);

// Throws what an errno value means for `owner`, which cannot start: LIMIT for want of descriptors.
[[noreturn]] void cannot_start(std::string_view owner, int error, ddp_status otherwise = DDP_ERROR_IO);

}  // namespace libddp
