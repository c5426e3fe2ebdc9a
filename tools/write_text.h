// Texts that a program writes as a whole, to a file that the user names or to standard output.
// Where not all of it can be written, as on a full disk, the error names the place and the reason.
#pragma once

#include <string>
#include <string_view>

namespace libddp {

// Makes the file or replaces what is in it. Throws std::system_error: "cannot write PATH: No space
// left on device".
void write_file(const std::string& path, std::string_view text);

// Writes to standard output. Throws std::system_error: "cannot write standard output: Broken pipe".
void write_output(std::string_view text);

}  // namespace libddp
