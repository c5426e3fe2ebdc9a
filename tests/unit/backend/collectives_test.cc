// Every collective, type, operation, world and backend, with its algorithms and kinds of memory,
// against plain arithmetic.
#include <gtest/gtest.h>

#include "unit/backend/message.h"

namespace libddp {
namespace {

using namespace testing_backend;

class Collectives : public testing::TestWithParam<std::tuple<int, Kind>> {
protected:
    void SetUp() override {
        world_ = std::make_unique<World>(size(), kind());
        ASSERT_TRUE(world_->connected()) << (*world_)[0].failure.message;
    }
    int size() const { return std::get<0>(GetParam()); }
    const Kind& kind() const { return std::get<1>(GetParam()); }
    bool allocated() const { return kind().allocated; }
    bool fuses_scale() { return ((*world_)[0].capabilities() & DDP_BACKEND_FUSES_SCALE) != 0; }
    std::unique_ptr<World> world_;
};

constexpr std::size_t kCounts[] = {0, 1, 3, 64, 1001, 70000};

// How data moves depends neither on the operation nor, but for the sizes of parts, on the type: a
// large message of the smallest, of the usual and of the largest elements shows it. Sanitizers see
// this in the usual ones, from 1,001 elements on.
bool moves_alike(std::size_t count, ddp_dtype dtype) {
#ifdef DDP_SANITIZED
    return count > 64 && dtype != DDP_F32;
#else
    return count > 1001 && dtype != DDP_U8 && dtype != DDP_F32 && dtype != DDP_C128;
#endif
}

TEST_P(Collectives, Allreduce) {
    for (ddp_dtype dtype = DDP_F16; dtype <= DDP_C128; ++dtype)
        for (ddp_reduce_op op : {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX}) {
            if (!cpu::can_reduce(dtype, op)) continue;
            for (std::size_t count : kCounts) {
                if ((op != DDP_SUM && count != 1001) || moves_alike(count, dtype)) continue;
                SCOPED_TRACE(testing::Message()
                             << dtype_name(dtype) << " op " << op << " count " << count);
                std::vector<Bytes> inputs;
                for (int r = 0; r < size(); ++r) inputs.push_back(numbers(count, dtype, r));
                const double fused_scale = op == DDP_SUM && fuses_scale() ? 1.0 / size() : 1;
                const Bytes want = reduced(inputs, count, dtype, op, 1);
                const Bytes scaled =
                    fused_scale == 1 ? want : reduced(inputs, count, dtype, op, fused_scale);
                world_->each([&](Rank& rank) {
                    for (bool in_place : {true, false}) {
                        // Sums both ways; of the rest one or the other, in turn.
                        if (op != DDP_SUM && in_place != ((dtype + op) % 2 == 0)) continue;
                        const Bytes& input = inputs[static_cast<std::size_t>(rank.rank())];
                        Message send(rank, allocated(), input);
                        Message recv(rank, allocated(), in_place ? input : Bytes(input.size()));
                        ASSERT_EQ(rank.run(DDP_COLLECTIVE_ALLREDUCE, dtype, op,
                                           in_place ? recv.data() : send.data(), recv.data(), count,
                                           in_place ? fused_scale : 1),
                                  DDP_OK)
                            << rank.failure.message;
                        EXPECT_TRUE(equal(recv.bytes(), in_place ? scaled : want, count, dtype));
                    }
                });
            }
        }
}

TEST_P(Collectives, ReduceScatter) {
    for (ddp_dtype dtype = DDP_F16; dtype <= DDP_C128; ++dtype)
        for (std::size_t count :
             {std::size_t{0}, std::size_t{1}, std::size_t{517}, std::size_t{40000}}) {
            if (moves_alike(count, dtype)) continue;
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " count " << count);
            const std::size_t part = count * dtype_size(dtype);
            std::vector<Bytes> inputs;
            for (int r = 0; r < size(); ++r)
                inputs.push_back(numbers(count * static_cast<std::size_t>(size()), dtype, r));
            const Bytes want =
                reduced(inputs, count * static_cast<std::size_t>(size()), dtype, DDP_SUM, 1);
            world_->each([&](Rank& rank) {
                Message send(rank, allocated(), inputs[static_cast<std::size_t>(rank.rank())]);
                Bytes recv(part + 1);
                ASSERT_EQ(rank.run(DDP_COLLECTIVE_REDUCE_SCATTER, dtype, DDP_SUM, send.data(),
                                   recv.data(), count),
                          DDP_OK)
                    << rank.failure.message;
                EXPECT_EQ(0, std::memcmp(recv.data(),
                                         want.data() + part * static_cast<std::size_t>(rank.rank()),
                                         part));
            });
        }
}

TEST_P(Collectives, Allgather) {
    for (ddp_dtype dtype : {DDP_U8, DDP_F16, DDP_F32, DDP_F64, DDP_C128})  // one of each size
        for (std::size_t count : kCounts) {
            if (moves_alike(count, dtype)) continue;
            const std::size_t part = count * dtype_size(dtype);
            std::vector<Bytes> inputs;
            for (int r = 0; r < size(); ++r) inputs.push_back(numbers(count, dtype, r));
            world_->each([&](Rank& rank) {
                Message mine(rank, allocated(), inputs[static_cast<std::size_t>(rank.rank())]);
                for (bool in_place : {true, false}) {
                    Message recv(rank, allocated(),
                                 Bytes(part * static_cast<std::size_t>(rank.world()) + 1));
                    char* own = recv.data() + part * static_cast<std::size_t>(rank.rank());
                    if (in_place) std::memcpy(own, mine.data(), part);
                    ASSERT_EQ(rank.run(DDP_COLLECTIVE_ALLGATHER, dtype, DDP_SUM,
                                       in_place ? own : mine.data(), recv.data(), count),
                              DDP_OK)
                        << rank.failure.message;
                    for (std::size_t r = 0; r < inputs.size(); ++r)
                        EXPECT_EQ(0, std::memcmp(recv.data() + part * r, inputs[r].data(), part));
                }
            });
        }
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
    for (ddp_dtype dtype : {DDP_U8, DDP_F32, DDP_C128})
        for (std::size_t count :
             {std::size_t{0}, std::size_t{1}, std::size_t{1001}, std::size_t{70000}})
            for (int root = 0; root < size(); ++root) {
                const Bytes want = numbers(count, dtype, root);
                world_->each([&](Rank& rank) {
                    Message data(rank, allocated(),
                                 rank.rank() == root ? want : Bytes(want.size()));
                    ASSERT_EQ(rank.run(DDP_COLLECTIVE_BROADCAST, dtype, DDP_SUM, data.data(),
                                       data.data(), count, 1, root),
                              DDP_OK)
                        << rank.failure.message;
                    EXPECT_EQ(data.bytes(), want);
                });
            }
}

TEST_P(Collectives, BarrierWaitsForTheLast) {
    std::atomic<int> arrived{0};
    world_->each([&](Rank& rank) {
        if (rank.rank() == rank.world() - 1)
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
        ++arrived;
        ASSERT_EQ(rank.barrier(), DDP_OK) << rank.failure.message;
        EXPECT_EQ(arrived, rank.world());
    });
}

TEST_P(Collectives, MatchBetweenCollectives) {
    world_->each([&](Rank& rank) {
        std::vector<float> data(5000, 1);
        for (int step = 0; step < 30; ++step) {
            ASSERT_EQ(rank.match("step " + std::to_string(step)), DDP_OK) << rank.failure.message;
            ASSERT_EQ(rank.allreduce(data), DDP_OK) << rank.failure.message;
            data.assign(5000, 1);
        }
        EXPECT_EQ(rank.match(std::string(128, 'x')), DDP_OK);
        EXPECT_EQ(rank.match(""), DDP_OK);
    });
}

// A sanitizer sees the same among three ranks, in a third of the time that five take.
#ifdef DDP_SANITIZED
const auto kWorlds = testing::Values(1, 3);
const auto kSeveral = testing::Values(3);
#else
const auto kWorlds = testing::Values(1, 2, 3, 5);
const auto kSeveral = testing::Values(2, 3, 4);
#endif

INSTANTIATE_TEST_SUITE_P(
    Worlds, Collectives,
    testing::Combine(
        kWorlds,
        testing::Values(Kind{"direct", gloo_backend(), "algorithm=direct"},
                        Kind{"tcp", tcp_backend()},
                        Kind{"tcp_ring", tcp_backend(), "algorithm=ring"},
                        Kind{"tcp_lanes", tcp_backend(), "lanes=3,wire=plain"},
                        Kind{"shm", shm_backend()}, Kind{"shm_allocated", shm_backend(), "", true},
                        Kind{"hierarchical", hierarchical_backend(), "", false, 2},
                        Kind{"hierarchical_allocated", hierarchical_backend(), "", true, 2})),
    [](const auto& instance) {
        return std::get<1>(instance.param).name + std::to_string(std::get<0>(instance.param));
    });

#ifndef DDP_SANITIZED  // Gloo's own algorithms are code that sanitizers do not see
INSTANTIATE_TEST_SUITE_P(
    GloosOwn, Collectives,
    testing::Combine(testing::Values(3, 4),
                     testing::Values(Kind{"ring", gloo_backend(), "algorithm=ring"},
                                     Kind{"bcube", gloo_backend(), "algorithm=bcube"})),
    [](const auto& instance) {
        return std::get<1>(instance.param).name + std::to_string(std::get<0>(instance.param));
    });
#endif

// Only the ranks of host 1 have their messages in shared memory. Messages between hosts must be cut
// alike on both.
TEST(Hierarchical, HostsMayUseDifferentKindsOfMemory) {
    constexpr std::size_t kCount = 300'000;
    for (int size : {4, 5}) {
        World world(size, Kind{"hierarchical", hierarchical_backend(), "", false, 2});
        ASSERT_TRUE(world.connected()) << world[0].failure.message;
        std::vector<Bytes> inputs;
        for (int r = 0; r < size; ++r) inputs.push_back(numbers(kCount, DDP_F32, r));
        const Bytes want = reduced(inputs, kCount, DDP_F32, DDP_SUM, 1);
        world.each([&](Rank& rank) {
            Message data(rank, rank.rank() % 2 == 1, inputs[static_cast<std::size_t>(rank.rank())]);
            ASSERT_EQ(rank.run(DDP_COLLECTIVE_ALLREDUCE, DDP_F32, DDP_SUM, data.data(), data.data(),
                               kCount),
                      DDP_OK)
                << rank.failure.message;
            EXPECT_TRUE(equal(data.bytes(), want, kCount, ddp_dtype{DDP_F32}));
        });
    }
}

// Above 16 ranks: signatures travel in rounds, and the automatic choice is the ring.
TEST(LargeWorld, AllreduceBarrierAndMatch) {
    World world(18);
    ASSERT_TRUE(world.connected()) << world[0].failure.message;
    EXPECT_EQ(world[0].capabilities() & (DDP_BACKEND_FUSES_SCALE | DDP_BACKEND_DETERMINISTIC), 0u);
    world.each([&](Rank& rank) {
        std::vector<float> data(1000, 1);
        ASSERT_EQ(rank.match("same"), DDP_OK) << rank.failure.message;
        ASSERT_EQ(rank.allreduce(data), DDP_OK) << rank.failure.message;
        EXPECT_EQ(data, std::vector<float>(1000, 18));
        ASSERT_EQ(rank.barrier(), DDP_OK) << rank.failure.message;
        EXPECT_EQ(rank.match(rank.rank() == 11 ? "else" : "same"), DDP_ERROR_MISMATCH)
            << rank.failure.message;
        EXPECT_EQ(rank.theirs, rank.rank() == 11 ? "same" : "else");
        EXPECT_EQ(rank.their_rank == 11, rank.rank() != 11);
    });
}

Kind kind_of(const std::string& backend) {
    if (backend == "shm") return {"shm", shm_backend()};
    if (backend == "hierarchical") return {"hierarchical", hierarchical_backend(), "", false, 2};
    return {"gloo", gloo_backend()};
}

// The same numbers, reduced whole and in pieces of many sizes, with sums that are not exact.
class Deterministic : public testing::TestWithParam<std::tuple<int, ddp_dtype, const char*>> {};

TEST_P(Deterministic, BitsDoNotDependOnTheCut) {
    const auto [size, type, backend] = GetParam();
    // the lambda below cannot take a part of a structured binding with every compiler
    const ddp_dtype dtype = type;
    constexpr std::size_t kCount = 300007;
    World world(size, "", DDP_GROUP_DETERMINISTIC, 20000, kind_of(backend).backend,
                kind_of(backend).hosts);
    ASSERT_TRUE(world.connected()) << world[0].failure.message;
    EXPECT_TRUE(world[0].capabilities() & DDP_BACKEND_DETERMINISTIC);
    const std::size_t element = dtype_size(dtype);
    std::vector<Bytes> results(static_cast<std::size_t>(size));
    world.each([&](Rank& rank) {
        const Bytes input = noise(kCount, dtype, rank.rank());
        Bytes whole = input;
        for (std::size_t piece : {kCount, kCount / 2 + 1, std::size_t{65536}, std::size_t{8191}}) {
            Bytes out(input.size());
            for (std::size_t begin = 0; begin < kCount; begin += piece)
                ASSERT_EQ(rank.run(DDP_COLLECTIVE_ALLREDUCE, dtype, DDP_SUM,
                                   input.data() + begin * element, out.data() + begin * element,
                                   std::min(piece, kCount - begin), 1.0 / rank.world()),
                          DDP_OK)
                    << rank.failure.message;
            if (piece == kCount) whole = out;
            EXPECT_TRUE(out == whole) << "pieces of " << piece;
        }
        results[static_cast<std::size_t>(rank.rank())] = whole;
    });
    for (const Bytes& result : results) EXPECT_TRUE(result == results[0]);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Deterministic,
                         testing::Combine(kSeveral, testing::Values(DDP_F32, DDP_F16, DDP_BF16),
                                          testing::Values("gloo", "shm", "hierarchical")));

}  // namespace
}  // namespace libddp
