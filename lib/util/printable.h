// Texts of others on a terminal and in logs: of peers, from stores, files and the environment. A
// terminal obeys escape sequences.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace libddp {

// The text with \x1b, and so on, for each control character and for each byte that is not UTF-8.
// kept: control characters that stay. log() and the C ABI's errors do this to all of their text, so
// messages need not.
std::string printable(std::string_view text, std::string_view kept = "");
// The same in a buffer, without allocating; cut off where that is full. Returns how many bytes it
// wrote.
std::size_t printable(std::string_view text, char* to, std::size_t room);
// A key or a value for a message: printable, in quotes, and shortened.
std::string in_quotes(std::string_view text);

}  // namespace libddp
