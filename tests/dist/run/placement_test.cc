// Where ddprun places ranks, on machines that hwloc makes up.
#include "placement.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

namespace ddprun {
namespace {

Machine machine(const char* synthetic) {
    setenv("HWLOC_SYNTHETIC", synthetic, 1);
    Machine found = find_machine();
    unsetenv("HWLOC_SYNTHETIC");
    return found;
}

using Processors = std::vector<std::vector<int>>;

struct Placed {
    Processors processors;
    std::vector<int> threads;
    std::string why_not;
};

Placed place(const char* synthetic, Placing how, int ranks) {
    Placed placed;
    for (const Place& place : place_ranks(machine(synthetic), how, ranks, placed.why_not)) {
        placed.processors.push_back(place.processors);
        placed.threads.push_back(place.threads());
    }
    return placed;
}

constexpr const char* kTwoNodes = "package:2 [numa] core:4 pu:2";
const std::vector<int> kFirst = {0, 1, 2, 3, 4, 5, 6, 7};
const std::vector<int> kSecond = {8, 9, 10, 11, 12, 13, 14, 15};

TEST(Placement, RanksShareNodesEvenly) {
    const Placed one_each = place(kTwoNodes, Placing::kNuma, 2);
    EXPECT_EQ(one_each.processors, (Processors{kFirst, kSecond}));
    EXPECT_EQ(one_each.threads, (std::vector<int>{8, 8}));
    const Placed two_each = place(kTwoNodes, Placing::kNuma, 4);
    EXPECT_EQ(two_each.processors, (Processors{kFirst, kFirst, kSecond, kSecond}));
    EXPECT_EQ(two_each.threads, (std::vector<int>{4, 4, 4, 4}));
    EXPECT_EQ(place(kTwoNodes, Placing::kNuma, 32).threads, std::vector<int>(32, 1));
}

TEST(Placement, ARankMayHaveSeveralNodes) {
    const Placed alone = place(kTwoNodes, Placing::kNuma, 1);
    ASSERT_EQ(alone.processors.size(), 1u);
    EXPECT_EQ(alone.processors[0].size(), 16u);
    EXPECT_EQ(alone.threads, std::vector<int>{16});
    const Placed pairs = place("package:4 [numa] core:2 pu:1", Placing::kNuma, 2);
    EXPECT_EQ(pairs.processors, (Processors{{0, 1, 2, 3}, {4, 5, 6, 7}}));
    std::string why_not;  // one that has all of them has them whatever their sizes
    const std::vector<Place> uneven =
        place_ranks({{{0, 1, 2}, {3}}, {}}, Placing::kNuma, 1, why_not);
    ASSERT_EQ(uneven.size(), 1u) << why_not;
    EXPECT_EQ(uneven[0].processors, (std::vector<int>{0, 1, 2, 3}));
    EXPECT_EQ(uneven[0].threads(), 4);
}

TEST(Placement, UnevenRanksAreNotPlaced) {
    const Placed three = place(kTwoNodes, Placing::kNuma, 3);
    EXPECT_TRUE(three.processors.empty());
    EXPECT_EQ(three.why_not, "3 ranks cannot be divided evenly among 2 NUMA nodes");
    std::string why_not;
    EXPECT_TRUE(place_ranks({{{0, 1, 2}, {3}}, {}}, Placing::kNuma, 2, why_not).empty());
    EXPECT_NE(why_not.find("different numbers"), std::string::npos);
    EXPECT_TRUE(place_ranks({}, Placing::kNuma, 2, why_not).empty());
}

TEST(Placement, CoresAreForOneRankEach) {
    const Placed four = place(kTwoNodes, Placing::kCores, 4);
    EXPECT_EQ(four.processors,
              (Processors{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
    EXPECT_EQ(four.threads, std::vector<int>(4, 4));
    const Placed three = place(kTwoNodes, Placing::kCores, 3);  // two cores each, and two stay free
    EXPECT_EQ(three.processors, (Processors{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
}

TEST(Placement, NoRankGetsASingleCore) {
    const Placed five = place(kTwoNodes, Placing::kCores, 5);
    EXPECT_TRUE(five.processors.empty());
    EXPECT_EQ(five.why_not, "too few cores (8) for 5 ranks, which need at least 2 each");
}

TEST(Placement, NoneIsNone) {
    const Placed none = place(kTwoNodes, Placing::kNone, 4);
    EXPECT_TRUE(none.processors.empty());
    EXPECT_EQ(none.why_not, "");
}

// Every number of ranks on several machines: nobody gets nothing, and cores belong to one rank.
TEST(Placement, AnyNumberOfRanks) {
    for (const char* synthetic :
         {"pu:1", "numa:1 core:2 pu:1", kTwoNodes, "package:2 numa:4 core:3 pu:2"}) {
        for (int ranks = 1; ranks <= 20; ++ranks) {
            for (const Placing how : {Placing::kNuma, Placing::kCores}) {
                const Placed placed = place(synthetic, how, ranks);
                EXPECT_NE(placed.processors.empty(), placed.why_not.empty());
                std::multiset<int> used;
                for (const auto& processors : placed.processors) {
                    EXPECT_FALSE(processors.empty()) << synthetic << " " << ranks;
                    used.insert(processors.begin(), processors.end());
                }
                if (how == Placing::kNuma) continue;
                for (const int processor : used)
                    EXPECT_EQ(used.count(processor), 1u) << synthetic << " " << ranks;
            }
        }
    }
}

}  // namespace
}  // namespace ddprun
