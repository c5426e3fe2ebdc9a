#include "comm/all_to_all.h"

#include <functional>
#include <numeric>

#include "kernels/dtype.h"

namespace libddp {
namespace {

using Counts = std::vector<std::uint64_t>;

// Elements of all ranks' parts.
std::size_t sum_of(const Counts& counts, std::int32_t world, std::size_t most, const char* name) {
    if (counts.size() != static_cast<std::size_t>(world))
        fail(DDP_ERROR_INTERNAL, name, " has ", counts.size(), " numbers for ", world, " ranks");
    std::size_t sum = 0;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
        if (counts[rank] > most - sum)
            fail(DDP_ERROR_INVALID_ARGUMENT, name, "[", rank, "] is ", counts[rank],
                 ", which is too large");
        sum += static_cast<std::size_t>(counts[rank]);
    }
    return sum;
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
    const auto* first = static_cast<const std::byte*>(a);
    const auto* second = static_cast<const std::byte*>(b);
    const std::less<const std::byte*> before;
    return a_bytes > 0 && b_bytes > 0 && before(first, second + b_bytes) &&
           before(second, first + a_bytes);
}

}  // namespace

void validate_all_to_all(const Collective& c, std::int32_t world) {
    const std::size_t item = dtype_size(c.dtype),
                      most = SIZE_MAX / 16 / static_cast<std::size_t>(world);
    std::size_t sent = c.count * static_cast<std::size_t>(world), received = sent;
    if (c.send_counts) {
        sent = sum_of(*c.send_counts, world, most, "send_counts");
        received = sum_of(*c.recv_counts, world, most, "recv_counts");
    }
    if (!c.send && sent > 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, "send is NULL, but this rank sends ", sent,
             " elements: all_to_all does not work in place");
    if (!c.recv && received > 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, "recv is NULL, but this rank receives ", received,
             " elements");
    if (overlap(c.send, sent * item, c.recv, received * item))
        fail(DDP_ERROR_INVALID_ARGUMENT,
             "send and recv overlap: all_to_all does not work in place");
}

std::size_t sent_elements(const Collective& c, std::int32_t world) {
    if (!c.send_counts) return c.count * static_cast<std::size_t>(world);
    return static_cast<std::size_t>(
        std::accumulate(c.send_counts->begin(), c.send_counts->end(), std::uint64_t{0}));
}

Counts told_counts(const Collective& c) {
    Counts told = *c.send_counts;
    told.insert(told.end(), c.recv_counts->begin(), c.recv_counts->end());
    return told;
}

ErrorInfo agree_on_counts(const Counts& told, std::int32_t world, ddp_dtype dtype, Counts& counts) {
    const auto ranks = static_cast<std::size_t>(world);
    counts.resize(ranks * ranks);
    for (std::size_t from = 0; from < ranks; ++from)
        for (std::size_t to = 0; to < ranks; ++to) {
            const std::uint64_t sent = told[2 * from * ranks + to];
            const std::uint64_t expected = told[(2 * to + 1) * ranks + from];
            if (sent != expected)
                return {
                    DDP_ERROR_MISMATCH,
                    str("all_to_all: rank ", from, " sends ", sent, " ", dtype_name(dtype),
                        " to rank ", to, ", and rank ", to, " expects ", expected, " of rank ",
                        from, "; send_counts and recv_counts of the two ranks must say the same"),
                    static_cast<std::int32_t>(to)};
            counts[from * ranks + to] = sent;
        }
    return {};
}

}  // namespace libddp
