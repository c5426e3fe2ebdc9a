// Worlds in which each rank is connected with a few others only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/tcp/join.h"
#include "unit/backend/fake_host.h"

namespace libddp {
namespace {

using namespace testing_backend;
using tcp::Algorithm;
using ::testing::ElementsAre;

#ifdef DDP_SANITIZED
constexpr int kLarge = 17;
#else
constexpr int kLarge = 21;
#endif

TEST(Peers, EveryoneOrPowersOfTwo) {
    EXPECT_THAT(tcp::peers_of(1, 4, Algorithm::kDirect), ElementsAre(0, 2, 3));
    EXPECT_THAT(tcp::peers_of(0, 2, Algorithm::kRing), ElementsAre(1));
    EXPECT_THAT(tcp::peers_of(0, 16, Algorithm::kRing), ElementsAre(1, 2, 4, 8, 12, 14, 15));
    EXPECT_EQ(tcp::peers_of(5, 64, Algorithm::kRing).size(), 11u);
}

TEST(Peers, AreMutual) {
    for (const int world : {2, 3, 17, 20, 64})
        for (int rank = 0; rank < world; ++rank)
            for (const int peer : tcp::peers_of(rank, world, Algorithm::kRing)) {
                const auto theirs = tcp::peers_of(peer, world, Algorithm::kRing);
                EXPECT_TRUE(std::count(theirs.begin(), theirs.end(), rank) == 1)
                    << rank << " and " << peer;
            }
}

class LargeWorld : public testing::Test {
protected:
    World world_{kLarge, Kind{"tcp", tcp_backend(), "wire=plain"}};
};

TEST_F(LargeWorld, Collectives) {
    ASSERT_TRUE(world_.connected());
    // A message that is gathered, one of which some ranks have no slice, and one of many chunks.
    for (const std::size_t count : {5ul, 70'000ul, 1'500'000ul}) {
        world_.each([&](Rank& rank) {
            std::vector<float> data(count);
            for (std::size_t i = 0; i < count; ++i)
                data[i] = static_cast<float>(i % 1000) + static_cast<float>(rank.rank());
            ASSERT_EQ(rank.allreduce(data), DDP_OK) << rank.failure.message;
            for (std::size_t i = 0; i < count; i += 1 + count / 1000)
                ASSERT_EQ(data[i],
                          static_cast<float>(kLarge * (i % 1000) + kLarge * (kLarge - 1) / 2))
                    << i;
        });
    }
    for (const std::size_t count : {3ul, 100'000ul}) {
        world_.each([&](Rank& rank) {
            std::vector<std::int32_t> mine(count, rank.rank()), all(count * kLarge);
            ASSERT_EQ(rank.run(DDP_COLLECTIVE_ALLGATHER, DDP_I32, DDP_SUM, mine.data(), all.data(),
                               count),
                      DDP_OK);
            for (std::size_t i = 0; i < all.size(); ++i)
                ASSERT_EQ(all[i], static_cast<std::int32_t>(i / count));
            for (std::size_t i = 0; i < all.size(); ++i)
                all[i] = static_cast<std::int32_t>(i) + rank.rank();
            ASSERT_EQ(rank.run(DDP_COLLECTIVE_REDUCE_SCATTER, DDP_I32, DDP_SUM, all.data(),
                               mine.data(), count),
                      DDP_OK);
            for (std::size_t i = 0; i < count; ++i) {
                const auto at =
                    static_cast<std::int32_t>(count) * rank.rank() + static_cast<std::int32_t>(i);
                ASSERT_EQ(mine[i], kLarge * at + kLarge * (kLarge - 1) / 2);
            }
        });
    }
    for (const int root : {0, 13}) {
        world_.each([&](Rank& rank) {
            std::vector<std::int32_t> data(300'000, rank.rank() == root ? 7 : 0);
            ASSERT_EQ(rank.run(DDP_COLLECTIVE_BROADCAST, DDP_I32, DDP_SUM, data.data(), data.data(),
                               data.size(), 1, root),
                      DDP_OK);
            EXPECT_EQ(data, std::vector<std::int32_t>(data.size(), 7));
        });
    }
}

TEST_F(LargeWorld, EveryRankSeesTheDifference) {
    ASSERT_TRUE(world_.connected());
    world_.each([](Rank& rank) {
        const bool odd = rank.rank() == 9;
        ASSERT_EQ(rank.match("allreduce 100"), DDP_OK);
        ASSERT_EQ(rank.match(odd ? "allreduce 200" : "allreduce 300"), DDP_ERROR_MISMATCH)
            << rank.failure.message;
        EXPECT_EQ(rank.theirs, odd ? "allreduce 300" : "allreduce 200");
        EXPECT_EQ(rank.their_rank == 9, !odd);
    });
}

TEST_F(LargeWorld, ARankThatLeavesEndsTheOthers) {
    ASSERT_TRUE(world_.connected());
    const auto begin = std::chrono::steady_clock::now();
    world_.each([](Rank& rank) {
        std::vector<float> data(300'000, 1);
        if (rank.rank() == 5) return rank.destroy();
        EXPECT_EQ(rank.allreduce(data), DDP_ERROR_RANK_FAILED) << rank.failure.message;
    });
    EXPECT_LT(elapsed_ms(begin), with_slack(5000));
}

}  // namespace
}  // namespace libddp
