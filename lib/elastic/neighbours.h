// Which ranks of a roster keep each other's shards.
#pragma once

#include <cstdint>
#include <vector>

namespace libddp {

// The ranks that keep the shards of `rank`, with itself, in ascending order: two, or three, of
// different hosts where the hosts allow that. host_of[rank]: the same number for ranks of one host.
std::vector<std::int32_t> neighbours_of(std::int32_t rank,
                                        const std::vector<std::uint64_t>& host_of);

}  // namespace libddp
