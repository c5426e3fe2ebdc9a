// The backend nccl by its own functions. One GPU is a world of one, or of two where NCCL allows
// several ranks on it.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>

#include "gpu/gpu.h"
#include "kernels/parts.h"
#include "support/slack.h"
#include "unit/backend/fake_host.h"
#include "unit/cuda/values.h"
#include "util/module.h"

namespace libddp {
namespace {

using namespace testing_gpu;
using ::testing::Each;
using namespace testing_backend;
using testing_cuda::random_values;
using testing_cuda::same;

const ddp_backend* nccl_backend() {
    std::string why;
    using Entry = const ddp_backend*();
    auto* entry = reinterpret_cast<Entry*>(load_module_entry("cuda", "ddp_backend_entry", &why));
    return entry ? entry() : nullptr;
}

// Why the backend cannot be used beside the GPU that there is; empty if it can.
std::string no_nccl() {
    std::string why;
    using Usable = ddp_status(ddp_backend_failure*);
    auto* usable = reinterpret_cast<Usable*>(load_module_entry("cuda", "ddp_backend_usable", &why));
    ddp_backend_failure failure{};
    if (!usable) return why;
    return usable(&failure) == DDP_OK ? "" : failure.message;
}

int nccl_version() {
    void* library = dlopen("libnccl.so.2", RTLD_NOW);
    auto* get =
        library ? reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion")) : nullptr;
    int version = 0;
    if (get) get(&version);
    return version;
}

// How many ranks there can be: a GPU for each, or two on one, whose kernels wait for each other.
int largest_world() {
    const int gpus = device_count(DDP_DEVICE_CUDA);
    return gpus > 1 ? std::min(gpus, 4) : shares_gpus() ? 2 : 1;
}
ddp_device device_of_rank(int rank) {
    return {DDP_DEVICE_CUDA, rank % device_count(DDP_DEVICE_CUDA)};
}

// Ranks on one GPU wait for each other in kernels. The memory that each needs on the GPU is
// allocated before the first of them is enqueued: an allocation may wait for kernels.
struct Ranks {
    explicit Ranks(int size, const std::string& options = "", std::uint32_t flags = 0)
        : world(size, options, flags, 60000, nccl_backend()) {
        for (int rank = 0; rank < size; ++rank)
            gpus.push_back(std::make_unique<Gpu>(device_of_rank(rank)));
    }
    ddp_collective collective(int rank, ddp_collective_kind kind, ddp_dtype dtype, const void* send,
                              void* recv, std::size_t count) {
        ddp_collective c{};
        c.struct_size = sizeof c;
        c.kind = kind;
        c.dtype = dtype;
        c.op = DDP_SUM;
        c.send = send;
        c.recv = recv;
        c.count = count;
        c.scale = 1;
        c.timeout_ms = 60000;
        c.device = device_of_rank(rank);
        c.stream = gpus[static_cast<std::size_t>(rank)]->handle();
        return c;
    }
    Gpu& gpu_of(const Rank& rank) { return *gpus[static_cast<std::size_t>(rank.rank())]; }
    // A piece of memory for each rank, with these values or zeros.
    using Memory = std::vector<std::shared_ptr<std::byte>>;
    Memory upload(const std::function<std::vector<std::byte>(int rank)>& values) {
        Memory memory;
        for (std::size_t rank = 0; rank < gpus.size(); ++rank)
            memory.push_back(gpus[rank]->upload(values(static_cast<int>(rank))));
        return memory;
    }
    Memory zeros(std::size_t bytes) {
        return upload([&](int) { return std::vector<std::byte>(bytes); });
    }

    World world;
    std::vector<std::unique_ptr<Gpu>> gpus;
};

std::byte* of(const Ranks::Memory& memory, const Rank& rank) {
    return memory[static_cast<std::size_t>(rank.rank())].get();
}

void check_allreduce(Ranks& ranks, ddp_dtype dtype, ddp_reduce_op op, std::size_t count,
                     double scale, bool exact) {
    std::mt19937 random(37);
    const auto world = static_cast<std::size_t>(ranks.world.size());
    std::vector<std::vector<std::byte>> values;
    std::vector<const void*> inputs;
    for (std::size_t rank = 0; rank < world; ++rank) {
        if (exact) {
            values.push_back(random_values(dtype, count, random));
        } else {  // small integers: sums have the same bits in any order
            std::vector<double> small(2 * count);
            for (auto& number : small) number = static_cast<double>(random() % 9);
            values.emplace_back(count * dtype_size(dtype));
            const ddp_dtype part = cuda::part_of(dtype);
            cpu::convert(values.back().data(), part, small.data(), DDP_F64,
                         values.back().size() / dtype_size(part));
        }
    }
    for (const auto& input : values) inputs.push_back(input.data());
    std::vector<std::byte> expected(count * dtype_size(dtype));
    cpu::reduce(expected.data(), inputs.data(), world, count, dtype, op, scale);
    const auto memory =
        ranks.upload([&](int rank) { return values[static_cast<std::size_t>(rank)]; });
    ranks.world.each([&](Rank& rank) {
        std::byte* mine = of(memory, rank);
        ddp_collective c =
            ranks.collective(rank.rank(), DDP_COLLECTIVE_ALLREDUCE, dtype, mine, mine, count);
        c.op = op;
        c.scale = scale;
        ASSERT_EQ(rank.run(c), DDP_OK) << rank.failure.message;
        const auto result = ranks.gpu_of(rank).read(mine, expected.size());
        EXPECT_TRUE(same(result.data(), expected.data(), count, dtype))
            << dtype_name(dtype) << ", op " << op << ", count " << count << ", scale " << scale;
    });
}

TEST(NcclOnGpu, ReducesWhatNcclCan) {
    Ranks ranks(largest_world());
    ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_C64, DDP_C128})
        for (const std::size_t count : {1u, 1000u, 300001u})
            check_allreduce(ranks, dtype, DDP_SUM, count, 1, false);
    for (const ddp_dtype dtype : {DDP_I32, DDP_I64, DDP_U8})
        for (const ddp_reduce_op op : {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX})
            check_allreduce(ranks, dtype, op, 1003, 1, true);
}

// Minimum and maximum with NaNs, products of complex numbers, and everything in rank order with the
// group's flag.
TEST(NcclOnGpu, ReducesInRankOrderItself) {
    Ranks ranks(largest_world(), "algorithm=direct");
    ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
    EXPECT_TRUE(ranks.world[0].capabilities() & DDP_BACKEND_DETERMINISTIC);
    for (const ddp_dtype dtype : testing_cuda::kAllTypes)
        for (const ddp_reduce_op op : {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX})
            if (cpu::can_reduce(dtype, op))
                for (const std::size_t count : {1u, 37u, 100003u})
                    check_allreduce(ranks, dtype, op, count, 0.5, true);
}

TEST(NcclOnGpu, DividesItselfWhereThatIsExact) {
    const int world = std::min(largest_world(), 2);
    Ranks ranks(world, "register=0");
    ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
    EXPECT_TRUE(ranks.world[0].capabilities() & DDP_BACKEND_FUSES_SCALE);
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_C64})
        check_allreduce(ranks, dtype, DDP_SUM, 1001, 1.0 / world, false);
}

TEST(NcclOnGpu, BroadcastsGathersAndScatters) {
    const int world = largest_world();
    Ranks ranks(world);
    ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
    constexpr std::size_t kCount = 5003;
    const auto parts = static_cast<std::size_t>(world);
    const auto own = [](int rank) {
        return bytes_of(std::vector<float>(kCount, static_cast<float>(rank + 1)));
    };
    const auto ones = ranks.upload(own), alls = ranks.zeros(parts * kCount * 4);
    ranks.world.each([&](Rank& rank) {
        Gpu& gpu = ranks.gpu_of(rank);
        std::byte *one = of(ones, rank), *all = of(alls, rank);
        ASSERT_EQ(rank.run(ranks.collective(rank.rank(), DDP_COLLECTIVE_ALLGATHER, DDP_F32, one,
                                            all, kCount)),
                  DDP_OK)
            << rank.failure.message;
        const auto gathered = values_of<float>(gpu.read(all, parts * kCount * 4));
        for (std::size_t part = 0; part < parts; ++part)
            EXPECT_EQ(gathered[part * kCount + 7], static_cast<float>(part + 1));
        ASSERT_EQ(rank.run(ranks.collective(rank.rank(), DDP_COLLECTIVE_REDUCE_SCATTER, DDP_F32,
                                            all, one, kCount)),
                  DDP_OK)
            << rank.failure.message;
        EXPECT_EQ(values_of<float>(gpu.read(one, 4))[0],
                  static_cast<float>((rank.rank() + 1) * world));
        gpu.write(one, own(rank.rank()));
        ddp_collective c =
            ranks.collective(rank.rank(), DDP_COLLECTIVE_BROADCAST, DDP_F32, one, one, kCount);
        c.root = world - 1;
        ASSERT_EQ(rank.run(c), DDP_OK) << rank.failure.message;
        EXPECT_EQ(values_of<float>(gpu.read(one, 4))[0], static_cast<float>(world));
    });
}

// Element i of rank r: sums of these are exact in any order.
std::vector<float> small_values(int rank, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rank * 16 + i % 7);
    return values;
}

void check_parts(Ranks& ranks, const std::vector<std::uint64_t>& counts, double scale) {
    std::size_t total = 0;
    for (const std::uint64_t count : counts) total += count;
    std::vector<float> sums(total);
    for (int r = 0; r < ranks.world.size(); ++r) {
        const auto values = small_values(r, total);
        for (std::size_t i = 0; i < total; ++i) sums[i] += values[i];
    }
    for (float& sum : sums) sum *= static_cast<float>(scale);
    const auto memory = ranks.upload([&](int rank) { return bytes_of(small_values(rank, total)); });
    ranks.world.each([&](Rank& rank) {
        std::byte* all = of(memory, rank);
        ddp_collective c = ranks.collective(rank.rank(), DDP_COLLECTIVE_REDUCE_SCATTER, DDP_F32,
                                            all, nullptr, total);
        c.counts = counts.data();
        c.scale = scale;
        c.recv = part_of(c, all, rank.rank());
        ASSERT_EQ(rank.run(c), DDP_OK) << rank.failure.message;
        const std::size_t begin = part_begin(c, rank.rank()), own = part_count(c, rank.rank());
        const auto reduced = values_of<float>(ranks.gpu_of(rank).read(all, total * 4));
        for (std::size_t i = begin; i < begin + own; ++i) ASSERT_EQ(reduced[i], sums[i]) << i;
        c.kind = DDP_COLLECTIVE_ALLGATHER;
        c.scale = 1;
        c.send = c.recv;
        c.recv = all;
        ASSERT_EQ(rank.run(c), DDP_OK) << rank.failure.message;
        EXPECT_EQ(values_of<float>(ranks.gpu_of(rank).read(all, total * 4)), sums);
    });
}

TEST(NcclOnGpu, PartsMayHaveDifferentSizes) {
    for (const char* options : {"", "algorithm=direct"}) {
        Ranks ranks(largest_world(), options);
        ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
        ASSERT_TRUE(ranks.world[0].capabilities() & DDP_BACKEND_COUNTS);
        const bool fuses = (ranks.world[0].capabilities() & DDP_BACKEND_FUSES_SCALE) != 0;
        const auto world = static_cast<std::size_t>(ranks.world.size());
        for (const double scale : {1.0, fuses ? 1.0 / static_cast<double>(world) : 1.0, 1.0}) {
            std::vector<std::uint64_t> counts(world, 1003);
            check_parts(ranks, counts, scale);
            counts.back() = 100'003;
            check_parts(ranks, counts, scale);
            counts.front() = 0;
            check_parts(ranks, counts, scale);
            counts.back() = 3;
            check_parts(ranks, counts, scale);
        }
    }
}

// Element i of what `from` sends to `to`.
float sent_value(int from, std::size_t to, std::size_t i) {
    return static_cast<float>(from * 1000) + static_cast<float>(to * 100) +
           static_cast<float>(i % 97);
}

// counts: of all ranks; empty: `count` to each.
void check_exchange(Ranks& ranks, std::size_t count, const std::vector<std::uint64_t>& counts) {
    const auto world = static_cast<std::size_t>(ranks.world.size());
    const auto between = [&](std::size_t from, std::size_t to) {
        return counts.empty() ? count : static_cast<std::size_t>(counts[from * world + to]);
    };
    const auto given = ranks.upload([&](int rank) {
        std::vector<float> values{-1};
        for (std::size_t to = 0; to < world; ++to)
            for (std::size_t i = 0; i < between(static_cast<std::size_t>(rank), to); ++i)
                values.push_back(sent_value(rank, to, i));
        return bytes_of(values);
    });
    std::size_t all = 0;
    for (std::size_t from = 0; from < world; ++from)
        for (std::size_t to = 0; to < world; ++to) all += between(from, to);
    const auto taken = ranks.zeros((all + 1) * sizeof(float));
    ranks.world.each([&](Rank& rank) {
        ddp_collective c =
            ranks.collective(rank.rank(), DDP_COLLECTIVE_ALL_TO_ALL, DDP_F32,
                             of(given, rank) + sizeof(float), of(taken, rank), count);
        if (!counts.empty()) {
            c.counts = counts.data();
            c.count = all;
        }
        ASSERT_EQ(rank.run(c), DDP_OK) << rank.failure.message;
        std::vector<float> want;
        const auto self = static_cast<std::size_t>(rank.rank());
        for (std::size_t from = 0; from < world; ++from)
            for (std::size_t i = 0; i < between(from, self); ++i)
                want.push_back(sent_value(static_cast<int>(from), self, i));
        want.push_back(0);  // behind the message
        EXPECT_EQ(
            values_of<float>(ranks.gpu_of(rank).read(of(taken, rank), want.size() * sizeof(float))),
            want);
    });
}

TEST(NcclOnGpu, ExchangesEqualAndUnevenParts) {
    Ranks ranks(largest_world());
    ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
    ASSERT_TRUE(ranks.world[0].capabilities() & DDP_BACKEND_ALL_TO_ALL);
    const auto world = static_cast<std::size_t>(ranks.world.size());
    for (const std::size_t count : {0, 1, 1003, 100'003}) check_exchange(ranks, count, {});
    for (const std::size_t most : {1, 30, 50'000}) {
        std::vector<std::uint64_t> counts;
        for (std::size_t i = 0; i < world * world; ++i)
            counts.push_back((i * 7919 + most) % (most + 1) * (i % 3 != 1));
        check_exchange(ranks, 0, counts);
    }
    // A rank that neither sends to others nor gets anything of them.
    std::vector<std::uint64_t> counts(world * world, 5);
    for (std::size_t other = 0; other < world; ++other)
        counts[other] = counts[other * world] = other == 0 ? 3 : 0;
    check_exchange(ranks, 0, counts);
}

TEST(NcclOnGpu, AllocatesBucketsWhereItCan) {
    Ranks ranks(largest_world());
    ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
    std::vector<void*> memories(ranks.gpus.size());
    const auto memory_of = [&](const Rank& rank) -> void*& {
        return memories[static_cast<std::size_t>(rank.rank())];
    };
    ranks.world.each([&](Rank& rank) {
        ddp_backend_failure failure{};
        ASSERT_EQ(rank.backend().allocate(rank.transport(), 1 << 20, device_of_rank(rank.rank()),
                                          &memory_of(rank), &failure),
                  DDP_OK)
            << failure.message;
    });
    if (HasFatalFailure()) return;
    if (device_count(DDP_DEVICE_CUDA) < static_cast<int>(ranks.gpus.size())) {
        EXPECT_THAT(memories, Each(nullptr)) << "registered memory of two ranks on one GPU";
    }
    ranks.world.each([&](Rank& rank) {
        Gpu& gpu = ranks.gpu_of(rank);
        void* memory = memory_of(rank);
        if (!memory) return;  // the group has one rank, or NCCL has no such memory
        const auto bytes = gpu.read(memory, 1 << 20);
        EXPECT_TRUE(
            std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
        EXPECT_EQ(rank.run(ranks.collective(rank.rank(), DDP_COLLECTIVE_ALLREDUCE, DDP_F32, memory,
                                            memory, 1 << 18)),
                  DDP_OK)
            << rank.failure.message;
        gpu.wait();
    });
    ranks.world.each([&](Rank& rank) {
        if (void* memory = memory_of(rank)) rank.backend().deallocate(rank.transport(), memory);
    });
}

ddp_collective sum_of_one(const Gpu& gpu, void* memory, std::int64_t timeout_ms) {
    ddp_collective c{};
    c.struct_size = sizeof c;
    c.kind = DDP_COLLECTIVE_ALLREDUCE;
    c.dtype = DDP_F32;
    c.op = DDP_SUM;
    c.send = c.recv = memory;
    c.count = 1;
    c.scale = 1;
    c.timeout_ms = timeout_ms;
    c.device = kFirst;
    c.stream = gpu.handle();
    return c;
}

TEST(NcclOnGpu, TwoRanksOnOneGpuAreNamedWhereThatCannotBe) {
    if (shares_gpus()) GTEST_SKIP() << "they can";
    World world(2, "", 0, 20000, nccl_backend());
    world.each([&](Rank& rank) {
        Gpu gpu;
        auto memory = gpu.allocate(4);
        const ddp_collective c = sum_of_one(gpu, memory.get(), 20000);
        EXPECT_EQ(rank.run(c), DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_NE(std::string(rank.failure.message).find("ranks 0 and 1 both use GPU"),
                  std::string::npos)
            << rank.failure.message;
    });
}

// One rank does not come to an operation that the other has enqueued: an abort ends it, and its
// stream goes on.
TEST(NcclOnGpu, AnAbortEndsWhatIsEnqueued) {
    if (largest_world() < 2) GTEST_SKIP() << "two ranks are needed";
    Ranks ranks(2);
    ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
    check_allreduce(ranks, DDP_F32, DDP_SUM, 10, 1, false);
    Rank& first = ranks.world[0];
    Gpu& gpu = *ranks.gpus[0];
    auto memory = gpu.allocate(4);
    ddp_collective c =
        ranks.collective(0, DDP_COLLECTIVE_ALLREDUCE, DDP_F32, memory.get(), memory.get(), 1);
    ASSERT_EQ(first.run(c), DDP_OK) << first.failure.message;
    const EventPtr end = gpu.stream().record();
    EXPECT_FALSE(end->wait(std::chrono::milliseconds(50)));
    ddp_backend_failure failure{};
    EXPECT_EQ(first.backend().check(first.transport(), &failure), DDP_OK) << failure.message;
    const auto before = std::chrono::steady_clock::now();
    first.abort();
    EXPECT_LT(elapsed_ms(before), libddp::with_slack(100));
    gpu.wait();
    EXPECT_LT(elapsed_ms(before), 5000);
    EXPECT_EQ(first.backend().check(first.transport(), &failure), DDP_ERROR_ABORTED);
    EXPECT_EQ(first.run(c), DDP_ERROR_ABORTED);
    EXPECT_LT(elapsed_ms(before), 5100);
}

// Memory that NCCL frees may wait for the kernels of the GPU, and these for each other.
TEST(NcclOnGpu, ANewCommunicatorComesAfterTheEndOfTheLast) {
    void* library = dlopen("libnccl.so.2", RTLD_NOW);
    auto* ending =
        library ? reinterpret_cast<int (*)()>(dlsym(library, "on_cpu_nccl_ending")) : nullptr;
    if (!ending) GTEST_SKIP() << "only NCCL as the CPU plays it says whether it is ending";
    for (int group = 0; group < 2; ++group) {
        Ranks ranks(largest_world());
        ASSERT_TRUE(ranks.world.connected()) << ranks.world[0].failure.message;
        check_allreduce(ranks, DDP_F32, DDP_SUM, 10, 1, false);
        EXPECT_EQ(ending(), 0);
    }
}

// A rank that never comes: the wait ends when the time has passed, and soon after an abort.
TEST(NcclOnGpu, WaitsAreBounded) {
    for (const bool aborted : {false, true}) {
        MemoryStore store;
        Rank lonely(store, 0, 2, "", 20000, 0, nccl_backend());
        ASSERT_EQ(lonely.status, DDP_OK) << lonely.failure.message;
        Gpu gpu;
        auto memory = gpu.allocate(4);
        const ddp_collective c = sum_of_one(gpu, memory.get(), 1000);
        std::thread killer;
        if (aborted)
            killer = std::thread([&] {
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                lonely.abort();
                store.break_with(DDP_ERROR_ABORTED);
            });
        const auto before = std::chrono::steady_clock::now();
        const ddp_status status = lonely.run(c);
        EXPECT_EQ(status, aborted ? DDP_ERROR_ABORTED : DDP_ERROR_TIMEOUT)
            << lonely.failure.message;
        EXPECT_LT(elapsed_ms(before), libddp::with_slack(aborted ? 400 : 1500));
        if (killer.joinable()) killer.join();
    }
}

}  // namespace

std::string testing_gpu::why_skip() {
    if (std::string why = no_gpu(); !why.empty()) return why;
    if (std::string why = no_nccl(); !why.empty()) return why;
    if (shares_gpus() && device_count(DDP_DEVICE_CUDA) == 1 && nccl_version() < 23000)
        return "NCCL before 2.30 does not allow several ranks on one GPU";
    return {};
}

}  // namespace libddp
