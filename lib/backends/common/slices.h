// How collectives divide a message among ranks and into chunks, and where they put what arrives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/types.h"
#include "kernels/dtype.h"

namespace libddp::backend {

inline constexpr std::size_t kAlignment = 64;

inline std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
}

// How the elements are cut into slices, one for each rank, and slices into chunks.
struct Cut {
    std::size_t element;  // bytes
    std::size_t slice;    // elements of every slice but the last ones
    std::size_t chunk;    // elements of every chunk of a slice but the last one
    std::size_t total;    // elements

    std::size_t begin(int rank) const { return std::min(static_cast<std::size_t>(rank) * slice, total); }
    std::size_t size(int rank) const { return begin(rank + 1) - begin(rank); }
    std::size_t chunks(int rank) const { return (size(rank) + chunk - 1) / chunk; }
    std::size_t chunk_size(int rank, std::size_t k) const { return std::min(chunk, size(rank) - k * chunk); }
    // Where a chunk begins in the message, in bytes.
    std::size_t offset(int rank, std::size_t k) const { return (begin(rank) + k * chunk) * element; }
};

inline Cut make_cut(std::size_t total, std::size_t slice, std::size_t chunk_bytes, ddp_dtype dtype) {
    const std::size_t element = dtype_size(dtype);
    return {element, slice, chunk_bytes / element, total};
}

// Slices as equal as whole cache lines allow.
inline Cut cut_evenly(std::size_t total, int ranks, std::size_t chunk_bytes, ddp_dtype dtype) {
    const std::size_t even = (total + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
    return make_cut(total, round_up(even, kAlignment), chunk_bytes, dtype);
}

// A binomial tree over ranks counted from the root: a rank's parent is the rank without its lowest set bit, and its children add
// one bit below that.
struct Tree {
    int parent = -1;
    std::vector<int> children;  // the largest subtree first

    Tree(int rank, int size, int root) {
        const int relative = (rank - root + size) % size;
        int bit = 1;
        while (bit < size && !(relative & bit)) bit *= 2;
        if (relative != 0) parent = (relative - bit + root) % size;
        for (bit /= 2; bit > 0; bit /= 2)
            if (relative + bit < size) children.push_back((relative + bit + root) % size);
    }
};

// Memory for what arrives before it is reduced. Kept between operations: fresh pages cost more than a small reduction.
class ReceiveMemory {
public:
    // At least `bytes`, aligned to 64 bytes. Invalidates what it returned before.
    char* reserve(std::size_t bytes) {
        if (memory_.size() < bytes + kAlignment) {
            memory_.clear();
            memory_.resize(bytes + kAlignment);
        }
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
        return memory_.data() + (round_up(address, kAlignment) - address);
    }

private:
    std::vector<char> memory_;
};

}  // namespace libddp::backend
