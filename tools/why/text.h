// Texts of others, such as names of groups, on a terminal and in metrics.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace why {

// With a '?' for each control character and for what is not UTF-8: a terminal must not obey a name.
std::string printable(std::string_view text);
// In characters, of a text that is printable.
std::size_t width(std::string_view text);
// At most so many characters of it.
std::string_view cut(std::string_view text, std::size_t most);

}  // namespace why
