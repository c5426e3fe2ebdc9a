// Collectives whose ranks have parts of different sizes, in place, on every backend and its kinds of
// memory, against plain arithmetic and against an allreduce of the whole message.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "unit/backend/message.h"

namespace libddp {
namespace {

using namespace testing_backend;

using Counts = std::vector<std::uint64_t>;

std::size_t sum_of(const Counts& counts) {
    return static_cast<std::size_t>(
        std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
}

// How `total` elements or a few more are divided among ranks.
enum class Shape { kEqual, kAnySizes, kZeros, kGiant, kAllOnOne };
constexpr Shape kShapes[] = {Shape::kEqual, Shape::kAnySizes, Shape::kZeros, Shape::kGiant,
                             Shape::kAllOnOne};

Counts drawn(Shape shape, int world, std::size_t total, std::mt19937& random) {
    Counts counts(static_cast<std::size_t>(world), total / static_cast<std::size_t>(world) + 1);
    const std::size_t one = random() % counts.size();
    for (std::size_t r = 0; r < counts.size(); ++r) {
        if (shape == Shape::kAnySizes) counts[r] = random() % (2 * total / counts.size() + 1);
        if (shape == Shape::kZeros && r % 2 != one % 2) counts[r] = 0;
        if (shape == Shape::kGiant) counts[r] = r == one ? total : random() % 4;
        if (shape == Shape::kAllOnOne) counts[r] = r == one ? total : 0;
    }
    return counts;
}

std::string text_of(const Counts& counts) {
    std::string text;
    for (const std::uint64_t count : counts) text += " " + std::to_string(count);
    return text;
}

// The place of a rank's part in a message.
struct Place {
    Place(const Counts& counts, int rank, ddp_dtype dtype)
        : begin(sum_of({counts.begin(), counts.begin() + rank}) * dtype_size(dtype)),
          bytes(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]) *
                dtype_size(dtype)) {}
    const std::size_t begin, bytes;
};

class Parts : public testing::TestWithParam<std::tuple<int, Kind>> {
protected:
    void SetUp() override {
        world_ = std::make_unique<World>(size(), kind());
        ASSERT_TRUE(world_->connected()) << (*world_)[0].failure.message;
        ASSERT_TRUE((*world_)[0].capabilities() & DDP_BACKEND_COUNTS);
    }
    int size() const { return std::get<0>(GetParam()); }
    const Kind& kind() const { return std::get<1>(GetParam()); }
    double scale() {
        const bool fuses = ((*world_)[0].capabilities() & DDP_BACKEND_FUSES_SCALE) != 0;
        return fuses ? 1.0 / size() : 1;
    }
    // With messages that go along with posts, that are chunks, and that are many.
    void each_message(const std::function<void(ddp_dtype, const Counts&)>& body) {
        std::mt19937 random(static_cast<unsigned>(size()));
        for (const ddp_dtype dtype : {DDP_U8, DDP_F16, DDP_F32, DDP_I64, DDP_C128})
            for (const std::size_t total : {1, 40, 3001, 70'001, 700'001})
                for (const Shape shape : kShapes) {
                    if (total > 70'000 && dtype != DDP_F32) continue;
                    const Counts counts = drawn(shape, size(), total, random);
                    SCOPED_TRACE(testing::Message() << dtype_name(dtype) << text_of(counts));
                    body(dtype, counts);
                }
    }
    std::unique_ptr<World> world_;
};

TEST_P(Parts, ReduceScatter) {
    each_message([this](ddp_dtype dtype, const Counts& counts) {
        const std::size_t total = sum_of(counts);
        std::vector<Bytes> inputs;
        for (int r = 0; r < size(); ++r) inputs.push_back(numbers(total, dtype, r));
        const double scaled = is_floating(dtype) ? scale() : 1;
        const Bytes want = reduced(inputs, total, dtype, DDP_SUM, scaled);
        world_->each([&](Rank& rank) {
            Message all(rank, kind().allocated, inputs[static_cast<std::size_t>(rank.rank())]);
            ASSERT_EQ(
                rank.run_in_parts(DDP_COLLECTIVE_REDUCE_SCATTER, dtype, all.data(), counts, scaled),
                DDP_OK)
                << rank.failure.message;
            const Place own(counts, rank.rank(), dtype);
            EXPECT_EQ(0, std::memcmp(all.data() + own.begin, want.data() + own.begin, own.bytes));
            EXPECT_EQ(all.bytes().back(), 0) << "behind the message";
        });
    });
}

TEST_P(Parts, Allgather) {
    each_message([this](ddp_dtype dtype, const Counts& counts) {
        const Bytes want = numbers(sum_of(counts), dtype, 7);
        world_->each([&](Rank& rank) {
            const Place own(counts, rank.rank(), dtype);
            Bytes begin(want.size());
            std::memcpy(begin.data() + own.begin, want.data() + own.begin, own.bytes);
            Message all(rank, kind().allocated, begin);
            ASSERT_EQ(rank.run_in_parts(DDP_COLLECTIVE_ALLGATHER, dtype, all.data(), counts),
                      DDP_OK)
                << rank.failure.message;
            EXPECT_TRUE(all.bytes() == want);
        });
    });
}

TEST_P(Parts, OfNothing) {
    const Counts none(static_cast<std::size_t>(size()));
    world_->each([&](Rank& rank) {
        char nothing = 0;
        for (const ddp_collective_kind kind :
             {DDP_COLLECTIVE_REDUCE_SCATTER, DDP_COLLECTIVE_ALLGATHER})
            EXPECT_EQ(rank.run_in_parts(kind, DDP_F32, &nothing, none), DDP_OK)
                << rank.failure.message;
    });
}

#ifdef DDP_SANITIZED
const auto kPartsWorlds = testing::Values(3);
#else
const auto kPartsWorlds = testing::Values(1, 2, 3, 5);
#endif

std::string name_of_parts(const testing::TestParamInfo<std::tuple<int, Kind>>& instance) {
    return std::get<1>(instance.param).name + std::to_string(std::get<0>(instance.param));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Parts,
    testing::Combine(
        kPartsWorlds,
        testing::Values(Kind{"gloo", gloo_backend(), "algorithm=direct"},
                        Kind{"gloo_ring", gloo_backend(), "algorithm=ring"},
                        Kind{"tcp", tcp_backend()},
                        Kind{"tcp_ring", tcp_backend(), "algorithm=ring"},
                        Kind{"tcp_lanes", tcp_backend(), "lanes=3,wire=plain"},
                        Kind{"shm", shm_backend()}, Kind{"shm_allocated", shm_backend(), "", true},
                        Kind{"hierarchical", hierarchical_backend(), "", false, 2},
                        Kind{"hierarchical_allocated", hierarchical_backend(), "", true, 2})),
    name_of_parts);

// Not every rank is connected with every other.
INSTANTIATE_TEST_SUITE_P(LargeWorld, Parts,
                         testing::Values(std::make_tuple(18, Kind{"tcp", tcp_backend()})),
                         name_of_parts);

// In a group that must be deterministic, a part has the bits of an allreduce of the whole message,
// with sums that are not exact.
class DeterministicParts : public testing::TestWithParam<std::tuple<int, Kind>> {};

TEST_P(DeterministicParts, HaveTheBitsOfAnAllreduce) {
    const int size = std::get<0>(GetParam());
    const Kind& kind = std::get<1>(GetParam());
    World world(size, kind.options, DDP_GROUP_DETERMINISTIC, 20000, kind.backend, kind.hosts);
    ASSERT_TRUE(world.connected()) << world[0].failure.message;
    ASSERT_TRUE(world[0].capabilities() & DDP_BACKEND_COUNTS);
    const bool fuses = (world[0].capabilities() & DDP_BACKEND_FUSES_SCALE) != 0;
    std::mt19937 random(5);
    for (const ddp_dtype dtype : {DDP_F32, DDP_F16, DDP_BF16})
        for (const std::size_t total : {100, 30'001, 300'007})
            for (const Shape shape : kShapes)
                for (const double scale : {1.0, 1.0 / size}) {
                    if (scale != 1 && !fuses) continue;
                    const Counts counts = drawn(shape, size, total, random);
                    SCOPED_TRACE(testing::Message() << dtype_name(dtype) << text_of(counts));
                    world.each([&](Rank& rank) {
                        const Bytes input = noise(sum_of(counts), dtype, rank.rank());
                        Message whole(rank, kind.allocated, input);
                        Message parts(rank, kind.allocated, input);
                        ASSERT_EQ(rank.run(DDP_COLLECTIVE_ALLREDUCE, dtype, DDP_SUM, whole.data(),
                                           whole.data(), sum_of(counts), scale),
                                  DDP_OK)
                            << rank.failure.message;
                        ASSERT_EQ(rank.run_in_parts(DDP_COLLECTIVE_REDUCE_SCATTER, dtype,
                                                    parts.data(), counts, scale),
                                  DDP_OK)
                            << rank.failure.message;
                        const Place own(counts, rank.rank(), dtype);
                        EXPECT_EQ(0, std::memcmp(parts.data() + own.begin, whole.data() + own.begin,
                                                 own.bytes));
                    });
                }
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, DeterministicParts,
    testing::Combine(
        testing::Values(2, 3, 4),
        testing::Values(Kind{"gloo", gloo_backend()}, Kind{"tcp", tcp_backend()},
                        Kind{"shm", shm_backend()}, Kind{"shm_allocated", shm_backend(), "", true},
                        Kind{"hierarchical", hierarchical_backend(), "", false, 2},
                        Kind{"hierarchical_allocated", hierarchical_backend(), "", true, 2})),
    name_of_parts);
INSTANTIATE_TEST_SUITE_P(
    OfTwo, DeterministicParts,
    testing::Values(std::make_tuple(2, Kind{"tcp_ring", tcp_backend(), "algorithm=ring"}),
                    std::make_tuple(2, Kind{"gloo_ring", gloo_backend(), "algorithm=ring"}),
                    std::make_tuple(2, Kind{"gloo_bcube", gloo_backend(), "algorithm=bcube"})),
    name_of_parts);

// Gloo adds in an order of its own.
TEST(GloosOwnOrder, IsKeptByWhoeverDividesTheMessage) {
    World world(4, "algorithm=bcube", DDP_GROUP_DETERMINISTIC);
    ASSERT_TRUE(world.connected()) << world[0].failure.message;
    EXPECT_TRUE(world[0].capabilities() & DDP_BACKEND_DETERMINISTIC);
    EXPECT_FALSE(world[0].capabilities() & DDP_BACKEND_COUNTS);
}

// Where nothing else compares ranks.
TEST(PartsThatDiffer, AreFoundByTcp) {
    World world(3, Kind{"tcp", tcp_backend()});
    ASSERT_TRUE(world.connected()) << world[0].failure.message;
    world.each([](Rank& rank) {
        const Counts counts = rank.rank() == 1 ? Counts{5, 4, 3} : Counts{4, 5, 3};
        std::vector<float> all(12, 1);
        EXPECT_EQ(rank.run_in_parts(DDP_COLLECTIVE_REDUCE_SCATTER, DDP_F32, all.data(), counts),
                  DDP_ERROR_MISMATCH);
        EXPECT_EQ(rank.failure.rank == 1, rank.rank() != 1) << rank.failure.message;
    });
}

}  // namespace
}  // namespace libddp
