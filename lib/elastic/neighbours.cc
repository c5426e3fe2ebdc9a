#include "elastic/neighbours.h"

#include <algorithm>
#include <cstddef>

namespace libddp {

// Where ranks stand host by host, the largest host first, one that is half of all away is on
// another host, unless a host has more than half of them.
std::vector<std::int32_t> neighbours_of(std::int32_t rank,
                                        const std::vector<std::uint64_t>& host_of) {
    const auto host = [&host_of](std::int32_t r) { return host_of[static_cast<std::size_t>(r)]; };
    const auto size = [&](std::int32_t r) {
        return std::count(host_of.begin(), host_of.end(), host(r));
    };
    std::vector<std::int32_t> order(host_of.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return size(a) != size(b) ? size(a) > size(b) : host(a) < host(b);
    });
    const std::size_t half = order.size() / 2;
    if (half == 0) return {rank};
    const auto at =
        static_cast<std::size_t>(std::find(order.begin(), order.end(), rank) - order.begin());
    const std::size_t pair = at % half;  // a last one of an odd number is with the first two
    std::vector<std::int32_t> ranks{order[pair], order[pair + half]};
    if (pair == 0 && order.size() % 2 == 1) ranks.push_back(order.back());
    std::sort(ranks.begin(), ranks.end());
    return ranks;
}

}  // namespace libddp
