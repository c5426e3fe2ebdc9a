// The parts of a message of which each rank has one: of an allgather, a reduce_scatter and an
// all_to_all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ddp/backend.h"
#include "kernels/dtype.h"
#include "util/hash.h"

namespace libddp {

// Elements of a rank's part, and before it.
inline std::size_t part_count(const ddp_collective& c, int rank) {
    return c.counts ? static_cast<std::size_t>(c.counts[rank]) : c.count;
}
inline std::size_t part_begin(const ddp_collective& c, int rank) {
    if (!c.counts) return c.count * static_cast<std::size_t>(rank);
    std::size_t begin = 0;
    for (int r = 0; r < rank; ++r) begin += static_cast<std::size_t>(c.counts[r]);
    return begin;
}

// The same in bytes. part_of: where in the memory of all parts.
inline std::size_t part_bytes(const ddp_collective& c, int rank) {
    return part_count(c, rank) * dtype_size(c.dtype);
}
inline std::byte* part_of(const ddp_collective& c, const void* all, int rank) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(all)) +
           part_begin(c, rank) * dtype_size(c.dtype);
}

// Elements of all parts.
inline std::size_t all_parts(const ddp_collective& c, int world) {
    return c.counts ? c.count : c.count * static_cast<std::size_t>(world);
}

// Elements in blocks, of which each rank has as many as any other.
struct BlockShare {
    std::size_t begin, end;
};
inline BlockShare share_of_blocks(std::size_t count, std::size_t block, int rank, int world) {
    const std::size_t blocks = (count + block - 1) / block;
    const auto first = [&](int r) {
        return std::min(
            count, blocks * static_cast<std::size_t>(r) / static_cast<std::size_t>(world) * block);
    };
    return {first(rank), first(rank + 1)};
}

// An allreduce's result in blocks (ddp_collective.take), where each rank takes its share.
inline void take_share(const ddp_collective& c, const void* result, int rank, int world) {
    const std::size_t block = DDP_BACKEND_BLOCK_BYTES;
    const auto [begin, end] = share_of_blocks(c.count * dtype_size(c.dtype), block, rank, world);
    for (std::size_t at = begin; at < end; at += block)
        c.take(c.taker, static_cast<const std::byte*>(result) + at, at, std::min(block, end - at));
}

// The same for a reduce_scatter's result of this rank.
inline void take_part(const ddp_collective& c, int rank) {
    const std::size_t block = DDP_BACKEND_BLOCK_BYTES, size = part_bytes(c, rank);
    for (std::size_t at = 0; at < size; at += block)
        c.take(c.taker, static_cast<const std::byte*>(c.recv) + at, at, std::min(block, size - at));
}

// An all_to_all: the part from one rank to another; and how a rank's input and its output are
// divided, for the functions above.
class Exchanged {
public:
    Exchanged(const ddp_collective& c, int world)
        : c_(c), world_(static_cast<std::size_t>(world)) {}

    std::size_t bytes(int from, int to) const {
        const std::size_t place = static_cast<std::size_t>(from) * world_;
        const std::size_t count =
            c_.counts ? static_cast<std::size_t>(c_.counts[place + static_cast<std::size_t>(to)])
                      : c_.count;
        return count * dtype_size(c_.dtype);
    }
    ddp_collective input(int rank) const {
        ddp_collective divided = c_;
        if (!c_.counts) return divided;
        divided.counts = c_.counts + static_cast<std::size_t>(rank) * world_;
        divided.count = 0;
        for (std::size_t to = 0; to < world_; ++to)
            divided.count += static_cast<std::size_t>(divided.counts[to]);
        return divided;
    }
    // counts: memory for the result.
    ddp_collective output(int rank, std::vector<std::uint64_t>& counts) const {
        ddp_collective divided = c_;
        if (!c_.counts) return divided;
        counts.clear();
        divided.count = 0;
        for (std::size_t from = 0; from < world_; ++from) {
            counts.push_back(c_.counts[from * world_ + static_cast<std::size_t>(rank)]);
            divided.count += static_cast<std::size_t>(counts.back());
        }
        divided.counts = counts.data();
        return divided;
    }

private:
    const ddp_collective& c_;
    const std::size_t world_;
};

// For comparing with other ranks: of the parts' sizes, where each has one. Else 0.
inline std::uint64_t hash_of_parts(const std::uint64_t* counts, int world) {
    return counts ? hash_of(counts, static_cast<std::size_t>(world) * sizeof *counts) : 0;
}

}  // namespace libddp
