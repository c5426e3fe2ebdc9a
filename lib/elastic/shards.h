// How ranks divide the samples of a step.
#pragma once

#include <algorithm>
#include <cstdint>

namespace libddp {

// The first sample of a rank. rank may be world: all samples lie before it. The first ranks have
// one sample more where the samples do not divide evenly.
inline std::int64_t shard_begin(std::int64_t count, std::int64_t rank, std::int64_t world) {
    return count / world * rank + std::min(rank, count % world);
}

}  // namespace libddp
