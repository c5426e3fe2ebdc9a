// Random numbers of the system, for secrets.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace libddp {

// `bytes` random bytes in hexadecimal: twice as many digits. Throws INTERNAL.
std::string random_text(std::size_t bytes);

// Whether both are the same. Takes equally long whichever byte differs, so that nobody finds a
// secret byte by byte.
bool same_secret(std::string_view one, std::string_view other);

}  // namespace libddp
