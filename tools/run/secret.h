// The job secret: what a client of the store must know. It travels in the environment only.
#pragma once

#include <string>

namespace ddprun {

// 256 random bits as hexadecimal text. Throws std::runtime_error if the system has none to give.
std::string make_secret();

// The text of a file without the white space at its ends. Throws std::runtime_error that names the path if it cannot be
// read or holds no text. Sets `warning` if others may read the file or its text is short.
std::string read_secret(const std::string& path, std::string& warning);

}  // namespace ddprun
