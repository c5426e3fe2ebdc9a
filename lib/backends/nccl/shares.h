// How an allreduce is divided among ranks, each of which reduces a share. Plain C++.
#pragma once

#include <algorithm>
#include <cstddef>

namespace libddp::cuda {

struct Share {
    std::size_t begin, count;
};

// Shares of `count` elements of `size` bytes for `world` ranks: as equal as can be with borders at
// multiples of 16 bytes, so that kernels read whole words. The last ones may be empty.
class Shares {
public:
    Shares(std::size_t count, std::size_t size, std::size_t world) : count_(count) {
        const std::size_t step = std::max<std::size_t>(1, 16 / size);
        const std::size_t each = (count + world - 1) / world;
        each_ = (each + step - 1) / step * step;
    }
    Share of(std::size_t rank) const {
        const std::size_t begin = std::min(rank * each_, count_);
        return {begin, std::min(each_, count_ - begin)};
    }

private:
    std::size_t count_, each_;
};

}  // namespace libddp::cuda
