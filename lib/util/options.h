// Parsing of "key=value,key=value" option strings and of numbers, with errors that name the culprit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace libddp {

// Throws INVALID_ARGUMENT, naming `what` (for example "backend_options"), on a malformed string or a repeated key.
std::map<std::string, std::string> parse_options(std::string_view text, std::string_view what);

// Throws INVALID_ARGUMENT unless the whole text is a decimal integer between low and high.
std::int64_t parse_int(std::string_view text, std::int64_t low, std::int64_t high, std::string_view what);

}  // namespace libddp
