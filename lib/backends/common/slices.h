// How collectives divide a message among ranks and into chunks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ddp/types.h"
#include "device/memory.h"
#include "kernels/dtype.h"

namespace libddp::backend {

// How the elements are cut into slices, one for each rank, and slices into chunks.
struct Cut {
    std::size_t element;  // bytes
    std::size_t slice;    // elements of every slice but the last ones
    std::size_t chunk;    // elements of every chunk of a slice but the last one
    std::size_t total;    // elements

    std::size_t begin(int rank) const {
        return std::min(static_cast<std::size_t>(rank) * slice, total);
    }
    std::size_t size(int rank) const { return begin(rank + 1) - begin(rank); }
    std::size_t chunks(int rank) const { return (size(rank) + chunk - 1) / chunk; }
    // The chunks of the longest slice.
    std::size_t most_chunks(int ranks) const {
        std::size_t most = 0;
        for (int rank = 0; rank < ranks; ++rank) most = std::max(most, chunks(rank));
        return most;
    }
    std::size_t chunk_size(int rank, std::size_t k) const {
        return std::min(chunk, size(rank) - k * chunk);
    }
    // Where a chunk begins in the message, in bytes.
    std::size_t offset(int rank, std::size_t k) const {
        return (begin(rank) + k * chunk) * element;
    }
};

inline Cut make_cut(std::size_t total, std::size_t slice, std::size_t chunk_bytes,
                    ddp_dtype dtype) {
    const std::size_t element = dtype_size(dtype);
    return {element, slice, chunk_bytes / element, total};
}

// Slices as equal as whole cache lines allow.
inline Cut cut_evenly(std::size_t total, int ranks, std::size_t chunk_bytes, ddp_dtype dtype) {
    const std::size_t even =
        (total + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
    return make_cut(total, align_up(even), chunk_bytes, dtype);
}

// A binomial tree over ranks counted from the root: a rank's parent is the rank without its lowest
// set bit, and its children add one bit below that.
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

}  // namespace libddp::backend
