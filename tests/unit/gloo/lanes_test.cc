// A long allreduce over several sets of connections.
#include <gtest/gtest.h>

#include "unit/backend/fake_host.h"
#include "unit/backend/numbers.h"

namespace libddp {
namespace {

using namespace testing_backend;

// Long enough for three lanes up to four ranks, with parts that are not alike.
constexpr std::size_t kCount = 1'600'007;

using Results = std::vector<Bytes>;

Results allreduce(int size, const char* options, ddp_dtype dtype, bool in_place) {
    World world(size, options);
    EXPECT_TRUE(world.connected()) << world[0].failure.message;
    Results results(static_cast<std::size_t>(size));
    world.each([&](Rank& rank) {
        const Bytes input = noise(kCount, dtype, rank.rank());
        Bytes& out = results[static_cast<std::size_t>(rank.rank())] = input;
        EXPECT_EQ(rank.run(DDP_COLLECTIVE_ALLREDUCE, dtype, DDP_SUM,
                           in_place ? out.data() : input.data(), out.data(), kCount, 1.0 / size),
                  DDP_OK)
            << rank.failure.message;
    });
    return results;
}

TEST(Lanes, TheBitsAreThoseOfOne) {
    for (int size : {2, 3, 4})
        for (ddp_dtype dtype : {DDP_F32, DDP_BF16})
            for (bool in_place : {true, false}) {
                SCOPED_TRACE(testing::Message() << size << " ranks, " << dtype_name(dtype));
                const Results one = allreduce(size, "lanes=1", dtype, in_place);
                const Results three = allreduce(size, "lanes=3", dtype, in_place);
                for (const auto& result : three) EXPECT_TRUE(result == one[0]);
            }
}

TEST(Lanes, AMissingRankEndsAllOfThem) {
    World world(3, "lanes=3");
    ASSERT_TRUE(world.connected()) << world[0].failure.message;
    const auto begin = std::chrono::steady_clock::now();
    each_rank(2, [&](int r) {
        std::vector<float> data(kCount);
        world[r].timeout_ms = 300;
        const ddp_status status = world[r].allreduce(data);
        EXPECT_TRUE(status == DDP_ERROR_TIMEOUT || status == DDP_ERROR_RANK_FAILED)
            << world[r].failure.message;
    });
    EXPECT_LT(elapsed_ms(begin), with_slack(2000));
}

}  // namespace
}  // namespace libddp
