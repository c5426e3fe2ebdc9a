// How parameters form fragments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace libddp {

// The fragment of each of so many parameters: runs of them, of which the largest has as few bytes as
// possible. There are at least as many parameters as fragments.
std::vector<std::int32_t> cut_into_fragments(const std::vector<std::size_t>& bytes,
                                             std::int32_t fragments);

}  // namespace libddp
