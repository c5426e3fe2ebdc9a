// Decisions of the backend nccl before it calls NCCL.
#include <gmock/gmock.h>

#include "backends/nccl/rank_gpu.h"
#include "backends/nccl/settings.h"
#include "backends/nccl/shares.h"
#include "ddp/group.h"
#include "unit/cuda/values.h"
#include "util/error.h"

namespace libddp::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RankGpu rank_gpu(const char* gpu, int nccl = 22809, bool shares = false) {
    return {gpu, "GPU 0000:01:00.0", nccl, shares};
}

TEST(NcclRankGpu, AreWrittenAndRead) {
    const RankGpu before = rank_gpu("host 1 00ff", 23001, true), after = decode(encode(before));
    EXPECT_EQ(after.id, before.id);
    EXPECT_EQ(after.name, before.name);
    EXPECT_EQ(after.nccl, before.nccl);
    EXPECT_EQ(after.shares, before.shares);
    EXPECT_THROW(decode("nonsense"), Error);
    EXPECT_THROW(decode("1\n0\nGPU"), Error);
}

TEST(NcclRankGpu, RanksOnGpusOfTheirOwnMeet) {
    int rank = 0;
    EXPECT_EQ(fault_of({rank_gpu("a"), rank_gpu("b"), rank_gpu("c")}, &rank), "");
    EXPECT_EQ(rank, -1);
}

TEST(NcclRankGpu, SharingIsAMatterOfTheVersion) {
    int rank = -1;
    EXPECT_THAT(fault_of({rank_gpu("a"), rank_gpu("b"), rank_gpu("a")}, &rank),
                AllOf(HasSubstr("ranks 0 and 2 both use GPU 0000:01:00.0"),
                      HasSubstr("NCCL 2.28.9 does not")));
    EXPECT_EQ(rank, 2);
    EXPECT_THAT(fault_of({rank_gpu("a", 23000, true), rank_gpu("a", 23000, false)}, &rank),
                HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment of both"));
    EXPECT_EQ(fault_of({rank_gpu("a", 23000, true), rank_gpu("a", 23000, true)}, &rank), "");
    EXPECT_TRUE(any_shared({rank_gpu("a"), rank_gpu("b"), rank_gpu("a")}));
    EXPECT_FALSE(any_shared({rank_gpu("a"), rank_gpu("b")}));
}

TEST(NcclRankGpu, VersionsAreEqual) {
    int rank = -1;
    EXPECT_THAT(fault_of({rank_gpu("a"), rank_gpu("b", 22905)}, &rank),
                HasSubstr("rank 1 has NCCL 2.29.5, and rank 0 has 2.28.9"));
    EXPECT_EQ(rank, 1);
}

TEST(NcclShares, CoverEverythingOnce) {
    for (const std::size_t world : {1u, 2u, 3u, 8u})
        for (const std::size_t size : {1u, 2u, 4u, 8u, 16u})
            for (const std::size_t count : {1u, 5u, 64u, 1000u, 1027u}) {
                const Shares shares(count, size, world);
                std::size_t at = 0;
                for (std::size_t rank = 0; rank < world; ++rank) {
                    const Share share = shares.of(rank);
                    EXPECT_EQ(share.begin, at);
                    if (share.count > 0) {
                        EXPECT_EQ(share.begin * size % 16, 0u);
                    }
                    at += share.count;
                }
                EXPECT_EQ(at, count);
            }
}

Settings settings(const char* options, int world = 2, std::uint32_t flags = 0) {
    ddp_backend_host host{};
    host.options = options;
    host.world_size = world;
    host.flags = flags;
    return read_settings(host);
}

TEST(NcclSettings, Defaults) {
    const Settings plain = settings("");
    EXPECT_FALSE(plain.direct);
    EXPECT_TRUE(plain.registers);
    EXPECT_FALSE(plain.averages);
    EXPECT_TRUE(settings("", 2, DDP_GROUP_DETERMINISTIC).direct);
    EXPECT_TRUE(settings("algorithm=direct").direct);
    EXPECT_TRUE(settings("algorithm=direct").registers);
}

// NCCL divides before it adds.
TEST(NcclSettings, NcclDividesWhereThatIsExact) {
    EXPECT_TRUE(settings("register=0", 4).averages);
    EXPECT_FALSE(settings("register=0", 3).averages);
    EXPECT_FALSE(settings("register=0,algorithm=direct", 4).averages);
}

TEST(NcclSettings, Refuses) {
    for (const char* options : {"algorithm=fast", "register=2", "nonsense=1"})
        EXPECT_THROW(settings(options), Error) << options;
    EXPECT_THROW(settings("algorithm=nccl", 2, DDP_GROUP_DETERMINISTIC), Error);
}

}  // namespace
}  // namespace libddp::cuda
