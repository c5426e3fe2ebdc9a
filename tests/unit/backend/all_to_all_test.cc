// All_to_all on every backend, with its algorithms and kinds of memory, against a plain reference;
// and what it does when a rank does not come, leaves or disagrees.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "unit/backend/message.h"

namespace libddp {
namespace {

using namespace testing_backend;

// Elements from each rank to each; empty: `count` to all.
struct Parting {
    std::size_t count = 0;
    std::vector<std::uint64_t> counts{};

    std::size_t between(int from, int to, int world) const {
        return counts.empty()
                   ? count
                   : static_cast<std::size_t>(counts[static_cast<std::size_t>(from * world + to)]);
    }
};

Bytes part(const Parting& parting, int from, int to, int world, ddp_dtype dtype) {
    Bytes bytes(parting.between(from, to, world) * dtype_size(dtype));
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<char>(static_cast<std::size_t>(from * 37 + to * 11) + i % 101);
    return bytes;
}

void append(Bytes& to, const Bytes& bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
}

ddp_status exchange(Rank& rank, const Parting& parting, ddp_dtype dtype, const void* send,
                    void* recv) {
    ddp_collective c{};
    c.struct_size = sizeof c;
    c.kind = DDP_COLLECTIVE_ALL_TO_ALL;
    c.dtype = dtype;
    c.op = DDP_SUM;
    c.send = send;
    c.recv = recv;
    c.count = parting.count;
    c.scale = 1;
    c.timeout_ms = rank.timeout_ms;
    if (!parting.counts.empty()) {
        c.counts = parting.counts.data();
        c.count = std::accumulate(parting.counts.begin(), parting.counts.end(), std::size_t{0});
    }
    return rank.run(c);
}

void check(World& world, const Kind& kind, const Parting& parting, ddp_dtype dtype) {
    const int size = world.size();
    world.each([&](Rank& rank) {
        Bytes given, want;
        for (int other = 0; other < size; ++other) {
            append(given, part(parting, rank.rank(), other, size, dtype));
            append(want, part(parting, other, rank.rank(), size, dtype));
        }
        want.push_back(99);  // behind the message
        Bytes before(want.size());
        before.back() = 99;
        Message send(rank, kind.allocated, given), recv(rank, kind.allocated, before);
        ASSERT_EQ(exchange(rank, parting, dtype, send.data(), recv.data()), DDP_OK)
            << rank.failure.message;
        EXPECT_TRUE(recv.bytes() == want);
        EXPECT_TRUE(send.bytes() == given);
    });
}

class AllToAll : public testing::TestWithParam<std::tuple<int, Kind>> {
protected:
    void SetUp() override {
        world_ = std::make_unique<World>(size(), kind());
        ASSERT_TRUE(world_->connected()) << (*world_)[0].failure.message;
        ASSERT_TRUE((*world_)[0].capabilities() & DDP_BACKEND_ALL_TO_ALL);
    }
    int size() const { return std::get<0>(GetParam()); }
    const Kind& kind() const { return std::get<1>(GetParam()); }
    std::unique_ptr<World> world_;
};

TEST_P(AllToAll, OfEqualParts) {
    for (const ddp_dtype dtype : {DDP_U8, DDP_F32, DDP_C128})
        for (const std::size_t count : {0, 1, 3, 64, 1001, 70'000}) {
            if (count * static_cast<std::size_t>(size()) > 400'000 && dtype != DDP_F32) continue;
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " count " << count);
            check(*world_, kind(), {count}, dtype);
        }
}

// Parts of any size, most of them nothing, a rank that sends nothing, a rank that gets all, and one
// long part.
TEST_P(AllToAll, OfUnevenParts) {
    std::mt19937 random(static_cast<unsigned>(size()));
    const auto ranks = static_cast<std::size_t>(size());
    for (const std::size_t most : {2, 40, 3000, 70'000})
        for (int shape = 0; shape < 5; ++shape) {
            Parting parting;
            const std::size_t one = random() % ranks;
            for (std::size_t from = 0; from < ranks; ++from)
                for (std::size_t to = 0; to < ranks; ++to) {
                    const bool nothing = (shape == 1 && random() % 4 != 0) ||
                                         (shape == 2 && from == one) || (shape == 3 && to != one) ||
                                         (shape == 4 && (from != one || to != 0));
                    parting.counts.push_back(nothing ? 0 : random() % (most + 1));
                }
            SCOPED_TRACE(testing::Message() << "most " << most << " shape " << shape);
            check(*world_, kind(), parting, shape % 2 == 0 ? DDP_F32 : DDP_U8);
        }
    check(*world_, kind(), {0, std::vector<std::uint64_t>(ranks * ranks)}, DDP_F32);
}

#ifdef DDP_SANITIZED
const auto kAllToAllWorlds = testing::Values(1, 3);
#else
const auto kAllToAllWorlds = testing::Values(1, 2, 3, 4, 5, 7, 9);
#endif

std::string name_of_case(const testing::TestParamInfo<std::tuple<int, Kind>>& instance) {
    return std::get<1>(instance.param).name + std::to_string(std::get<0>(instance.param));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, AllToAll,
    testing::Combine(
        kAllToAllWorlds,
        testing::Values(Kind{"gloo", gloo_backend()},
                        Kind{"gloo_ring", gloo_backend(), "algorithm=ring"},
                        Kind{"tcp", tcp_backend()},
                        Kind{"tcp_ring", tcp_backend(), "algorithm=ring"},
                        Kind{"tcp_lanes", tcp_backend(), "lanes=3,wire=plain"},
                        Kind{"shm", shm_backend()}, Kind{"shm_allocated", shm_backend(), "", true},
                        Kind{"hierarchical", hierarchical_backend(), "", false, 2},
                        Kind{"hierarchical_allocated", hierarchical_backend(), "", true, 3})),
    name_of_case);

// Not every rank is connected with every other.
INSTANTIATE_TEST_SUITE_P(LargeWorld, AllToAll,
                         testing::Values(std::make_tuple(17, Kind{"tcp", tcp_backend()}),
                                         std::make_tuple(18, Kind{"tcp_lanes", tcp_backend(),
                                                                  "lanes=2,wire=plain"})),
                         name_of_case);

class AllToAllFails : public testing::TestWithParam<Kind> {};

const Parting kParting{5000};

TEST_P(AllToAllFails, WithTimeoutIfARankDoesNotCome) {
    World world(3, GetParam());
    ASSERT_TRUE(world.connected());
    std::vector<float> send(15'000), recv(15'000);
    world[1].timeout_ms = 200;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(exchange(world[1], kParting, DDP_F32, send.data(), recv.data()), DDP_ERROR_TIMEOUT);
    EXPECT_LT(elapsed_ms(begin), with_slack(3000));
}

TEST_P(AllToAllFails, OnAllRanksIfOneLeavesOrAborts) {
    for (const bool leaves : {true, false}) {
        World world(4, GetParam());
        ASSERT_TRUE(world.connected());
        const auto begin = std::chrono::steady_clock::now();
        world.each([&](Rank& rank) {
            std::vector<float> send(20'000), recv(20'000);
            if (rank.rank() == 2) {
                if (leaves && rank.backend().leave) rank.backend().leave(rank.transport());
                return leaves ? rank.destroy() : rank.abort();
            }
            EXPECT_NE(exchange(rank, kParting, DDP_F32, send.data(), recv.data()), DDP_OK);
        });
        EXPECT_LT(elapsed_ms(begin), with_slack(10'000));
    }
}

INSTANTIATE_TEST_SUITE_P(
    Backends, AllToAllFails,
    testing::Values(Kind{"gloo", gloo_backend()}, Kind{"tcp", tcp_backend()},
                    Kind{"shm", shm_backend()}, Kind{"shm_allocated", shm_backend(), "", true},
                    Kind{"hierarchical", hierarchical_backend(), "", false, 2}),
    [](const auto& instance) { return name_of(instance); });

// Where nothing else compares ranks.
TEST(AllToAllThatDiffers, IsFoundByTcp) {
    World world(3, Kind{"tcp", tcp_backend()});
    ASSERT_TRUE(world.connected()) << world[0].failure.message;
    world.each([](Rank& rank) {
        std::vector<float> send(12, 1), recv(12);
        const std::size_t count = rank.rank() == 1 ? 3 : 4;
        EXPECT_EQ(exchange(rank, {count}, DDP_F32, send.data(), recv.data()), DDP_ERROR_MISMATCH);
        EXPECT_EQ(rank.failure.rank == 1, rank.rank() != 1) << rank.failure.message;
    });
}

}  // namespace
}  // namespace libddp
