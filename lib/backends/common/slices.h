// How collectives divide a message among ranks and into chunks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ddp/backend.h"
#include "device/memory.h"
#include "kernels/dtype.h"
#include "kernels/parts.h"

namespace libddp::backend {

// How the elements are cut into slices, one for each rank, and slices into chunks.
struct Cut {
    std::size_t element;              // bytes
    std::size_t chunk;                // elements of every chunk of a slice but the last one
    std::vector<std::size_t> begins;  // of each slice, and the end of the last one

    std::size_t begin(int rank) const { return begins[static_cast<std::size_t>(rank)]; }
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

// begin_of(rank): of the slice, and for the number of ranks the end.
template <class BeginOf>
Cut make_cut(int ranks, std::size_t chunk_bytes, ddp_dtype dtype, BeginOf begin_of) {
    Cut cut{dtype_size(dtype), chunk_bytes / dtype_size(dtype), {}};
    cut.begins.reserve(static_cast<std::size_t>(ranks) + 1);
    for (int rank = 0; rank <= ranks; ++rank) cut.begins.push_back(begin_of(rank));
    return cut;
}

// Slices as equal as whole cache lines allow.
inline Cut cut_evenly(std::size_t total, int ranks, std::size_t chunk_bytes, ddp_dtype dtype) {
    const std::size_t even =
        align_up((total + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks));
    return make_cut(ranks, chunk_bytes, dtype, [&](int rank) {
        return std::min(static_cast<std::size_t>(rank) * even, total);
    });
}

// The parts of a reduce_scatter or an allgather.
inline Cut cut_in_parts(const ddp_collective& c, int ranks, std::size_t chunk_bytes) {
    std::size_t next = 0;
    return make_cut(ranks, chunk_bytes, c.dtype, [&](int rank) {
        const std::size_t begin = next;
        if (rank < ranks) next += part_count(c, rank);
        return begin;
    });
}

// The parts of a reduce_scatter or an allgather in rounds, for memory that does not hold them all.
// Every round takes the same share of each part, so that all ranks have work until the end.
class Rounds {
public:
    // room: elements of a round, at least one for each rank.
    Rounds(const ddp_collective& c, int ranks, std::size_t room) {
        const std::size_t total = all_parts(c, ranks), parts = static_cast<std::size_t>(ranks);
        if (total > room) size_ = pieces(total, std::max(room, parts + 1) - parts);
        std::size_t begin = 0, place = 0;
        parts_.reserve(parts);
        for (int rank = 0; rank < ranks; ++rank) {
            const std::size_t count = part_count(c, rank);
            parts_.push_back({begin, count, place, pieces(count, size_)});
            begin += count;
            place += parts_.back().step;
        }
        elements_ = place;
    }

    std::size_t size() const { return size_; }
    // Elements of a rank's part in a round, and before them in the part and in the message.
    std::size_t count(int rank, std::size_t round) const {
        return std::min(part(rank).step, part(rank).count - before(rank, round));
    }
    std::size_t before(int rank, std::size_t round) const {
        return std::min(part(rank).count, round * part(rank).step);
    }
    std::size_t at(int rank, std::size_t round) const {
        return part(rank).begin + before(rank, round);
    }
    // Where a rank's elements stand in the memory of a round, and how many that has at most.
    std::size_t place(int rank) const { return part(rank).place; }
    std::size_t elements() const { return elements_; }

private:
    struct Part {
        std::size_t begin, count, place, step;
    };
    static std::size_t pieces(std::size_t total, std::size_t size) {
        return (total + size - 1) / size;
    }
    const Part& part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }

    std::size_t size_ = 1, elements_ = 0;
    std::vector<Part> parts_;
};

// An all_to_all in rounds, for memory that holds neither all that a rank sends nor all that it gets.
// Every round takes the same share of each part.
class ExchangeRounds {
public:
    // room: elements that a rank sends in a round or gets in it, or about one for each rank more.
    ExchangeRounds(const ddp_collective& c, int ranks, std::size_t room)
        : exchanged_(c, ranks), item_(dtype_size(c.dtype)) {
        std::vector<std::size_t> got(static_cast<std::size_t>(ranks));
        std::size_t most = 0;
        for (int from = 0; from < ranks; ++from) {
            std::size_t sent = 0;
            for (int to = 0; to < ranks; ++to) {
                sent += whole(from, to);
                got[static_cast<std::size_t>(to)] += whole(from, to);
            }
            most = std::max(most, sent);
        }
        for (const std::size_t elements : got) most = std::max(most, elements);
        size_ = std::max<std::size_t>((most + room - 1) / room, 1);
    }

    std::size_t size() const { return size_; }
    // Elements from one rank to another in a round, and before it.
    std::size_t count(int from, int to, std::size_t round) const {
        return before(from, to, round + 1) - before(from, to, round);
    }
    std::size_t before(int from, int to, std::size_t round) const {
        const std::size_t all = whole(from, to);
        return std::min(all, round * ((all + size_ - 1) / size_));
    }

private:
    std::size_t whole(int from, int to) const { return exchanged_.bytes(from, to) / item_; }

    const Exchanged exchanged_;
    const std::size_t item_;
    std::size_t size_ = 1;
};

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
