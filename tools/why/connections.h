// How the connections between the ranks of a group fare, from what their backend has recorded.
#pragma once

#include <optional>
#include <string>

#include "why/position.h"

namespace libddp::record {

// Why an operation in which all ranks are does not end.
std::string connection_text(const Group& group);
// How fast the slowest connection is, and what others are in comparison. Empty: nobody knows.
std::optional<std::string> speed_text(const Group& group);
// If nothing that a rank sends arrives any more.
std::optional<std::string> dead_connection_text(const Group& group);

}  // namespace libddp::record
