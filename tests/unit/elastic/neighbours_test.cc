// Which ranks keep each other's shards.
#include "elastic/neighbours.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace libddp {
namespace {

using Ranks = std::vector<std::int32_t>;

TEST(Neighbours, OfOneHostArePairsAndPerhapsThree) {
    EXPECT_EQ(neighbours_of(0, {7}), Ranks({0}));
    EXPECT_EQ(neighbours_of(1, {7, 7}), Ranks({0, 1}));
    EXPECT_EQ(neighbours_of(1, {7, 7, 7}), Ranks({0, 1, 2}));
    EXPECT_EQ(neighbours_of(3, {7, 7, 7, 7}), Ranks({1, 3}));
    EXPECT_EQ(neighbours_of(4, {7, 7, 7, 7, 7}), Ranks({0, 2, 4}));
}

TEST(Neighbours, AreOfDifferentHostsWhereThatIsPossible) {
    EXPECT_EQ(neighbours_of(0, {1, 1, 2, 2}), Ranks({0, 2}));
    EXPECT_EQ(neighbours_of(1, {1, 2, 1, 2}), Ranks({0, 1}));
    std::mt19937 chance(5);
    for (int i = 0; i < 300; ++i) {
        std::vector<std::uint64_t> hosts(1 + chance() % 12);
        for (auto& host : hosts) host = chance() % 4;
        std::map<std::uint64_t, std::size_t> sizes;
        for (const auto host : hosts) ++sizes[host];
        const bool possible = std::all_of(sizes.begin(), sizes.end(), [&](const auto& one) {
            return one.second <= hosts.size() / 2;
        });
        std::map<Ranks, Ranks> sets;
        for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(hosts.size()); ++rank)
            sets[neighbours_of(rank, hosts)].push_back(rank);
        for (const auto& [neighbours, ranks] : sets) {
            EXPECT_EQ(neighbours, ranks);  // all of a set say the same
            EXPECT_LE(ranks.size(), 3u);
            EXPECT_TRUE(ranks.size() >= 2 || hosts.size() == 1);
            // each has a copy on another host
            const auto host = [&](std::int32_t rank) {
                return hosts[static_cast<std::size_t>(rank)];
            };
            for (const std::int32_t rank : ranks)
                EXPECT_TRUE(!possible ||
                            std::any_of(ranks.begin(), ranks.end(), [&](std::int32_t other) {
                                return host(other) != host(rank);
                            }));
        }
    }
}

}  // namespace
}  // namespace libddp
