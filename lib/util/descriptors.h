// File descriptors that a library below us needs and does not do without in good order.
#pragma once

#include <cstddef>
#include <string_view>

namespace libddp {

// Throws LIMIT unless the process can open this many more. Another thread may take them afterwards: that leaves a small
// window. owner: "the store client", for the message.
void require_descriptors(std::size_t count, std::string_view owner);

// Throws what an errno value means for `owner`, which cannot start: LIMIT for want of descriptors, otherwise IO.
[[noreturn]] void cannot_start(std::string_view owner, int error);

}  // namespace libddp
