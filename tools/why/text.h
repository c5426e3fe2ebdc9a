// How wide a printable text (util/printable.h) is on a terminal.
#pragma once

#include <cstddef>
#include <string_view>

namespace why {

// In characters.
std::size_t width(std::string_view text);
// At most so many characters of it.
std::string_view cut(std::string_view text, std::size_t most);

}  // namespace why
