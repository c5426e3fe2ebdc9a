// The kernels of the codecs, played by threads of the CPU, against the CPU's own codecs: the same
// bytes, the same numbers, the same residuals.
#include <cstring>

#include "gpu/on_cpu/block_threads.h"
#include "kernels/cuda/codecs.h"
#include "unit/cuda/codec_world.h"
#include "unit/cuda/shares_world.h"

namespace libddp::cuda {
namespace {

using namespace testing_cuda;

// Runs kernels with so many threads in a block.
struct OnCpu {
    template <class Kernel, class AnyTable>
    void start(const AnyTable& table) const {
        if (table.chunks == 0) return;
        typename Kernel::Shared shared;
        on_cpu::play_block(thread_count, [&](const on_cpu::BlockThreads& threads) {
            work_on_chunks<Kernel>(threads, shared, table, 0, 1);
        });
    }
    void zero(void* memory, std::size_t bytes) const { std::memset(memory, 0, bytes); }

    std::uint32_t thread_count;
};

void run_kernels(const Setting& s, World& world, std::uint32_t thread_count) {
    const OnCpu run{thread_count};
    for (auto& side : world.sides) {
        side.scratch = Bytes(codec_scratch(side.batch) + 64, std::byte{0xee});
        side.batch.scratch = side.scratch.data() + (64 - address(side.scratch.data()) % 64);
        encode_batch(side.batch, run);
    }
    for (auto& side : world.sides) decode_batch(side.batch, s.scale, run);
}

void compare(const Setting& s, std::uint32_t seed, std::uint32_t thread_count = 1) {
    World expected(s, seed), actual(s, seed);
    run_cpu(s, expected);
    run_kernels(s, actual, thread_count);
    testing_cuda::compare(s, expected, actual);
}

// A sanitizer makes each element dear, and sees as much in fewer.
#ifdef DDP_SANITIZED
constexpr bool kAll = false;
#else
constexpr bool kAll = true;
#endif

class CudaCodec : public ::testing::TestWithParam<Named> {};

INSTANTIATE_TEST_SUITE_P(All, CudaCodec, ::testing::ValuesIn(kCodecs),
                         [](const auto& test) { return test.param.name; });

TEST_P(CudaCodec, SameBytesAndNumbersAsOnTheCpu) {
    std::uint32_t seed = 0;
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const std::size_t world : {1u, 2u, 3u}) {
            if (!kAll && !(dtype == DDP_F16 && world == 3) && !(dtype == DDP_F64 && world == 1))
                continue;
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", world " << world);
            Setting s{GetParam().codec,
                      dtype,
                      {1, 2, 7, 8, 9, 64, 1023, 1024, 1025, 2047, kAll ? 17000u : 3001u},
                      world};
            s.shift = world - 1;
            s.feedback = world != 2;
            s.spoilt = world > 1;
            s.scale = world == 3 ? 1.0 / 3 : 1;
            compare(s, ++seed);
            if (HasFatalFailure()) return;
        }
}

// More parts than a table has rows.
TEST_P(CudaCodec, ManyParts) {
    std::mt19937 random(3);
    Setting s{GetParam().codec, DDP_F32, {}};
    for (int i = 0; i < (kAll ? 3 : 1) * kCodecRows + 20; ++i)
        s.counts.push_back(1 + random() % (i % 40 == 0 ? 20000 : 300));
    s.spoilt = true;
    compare(s, 8);
}

// Threads that work together, for whoever sees races.
TEST_P(CudaCodec, CooperatingThreads) {
    for (const ddp_dtype dtype : {DDP_BF16, DDP_F64}) {
        Setting s{GetParam().codec, dtype, {1, 9, 70}};
        // Blocks of a few elements make threads wait at every few.
        const bool tiny = s.codec.block > 0 && s.codec.block < 100;
        if (!tiny) s.counts.insert(s.counts.end(), {1025, 3500});
        s.spoilt = true;
        compare(s, 9, 5);
    }
}

// So long that sums, ranges and places are put together from many chunks.
TEST_P(CudaCodec, ALongPart) {
    Setting s{GetParam().codec, DDP_F32, {140'000, 17}};
    compare(s, 10);
    s.counts = {2'200'000};  // lanes of several chunks
    s.world = 1;
    if (kAll && s.codec.kind == DDP_CODEC_TOPK) compare(s, 10);
}

TEST_P(CudaCodec, ManyRanks) {
    Setting s{GetParam().codec, DDP_F16, {3000}};
    s.world = 70;
    s.scale = 1.0 / 70;
    compare(s, 11);
}

// Kernels of numbers of 8 bits.
struct PlayedSite : HostSite {
    explicit PlayedSite(std::uint32_t threads) : run{threads} {}

    static std::size_t encode_scratch(const ddp_codec_batch& batch) { return codec_scratch(batch); }
    void encode(const ddp_codec_batch& batch) const { encode_batch(batch, run); }
    void recode(const ddp_codec_batch& batch, double scale) const {
        recode_batch(batch, scale, run);
    }
    void decode(const ddp_codec_batch& batch, double scale) const {
        decode_batch(batch, scale, run);
    }

    const OnCpu run;
};

class CudaShares : public ::testing::TestWithParam<Named> {};

INSTANTIATE_TEST_SUITE_P(All, CudaShares, ::testing::ValuesIn(kShareCodecs),
                         [](const auto& test) { return test.param.name; });

TEST_P(CudaShares, SameBytesAndNumbersAsOnTheCpu) {
    std::uint32_t seed = 0;
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const std::size_t world : {1u, 2u, 3u}) {
            if (!kAll && !(dtype == DDP_F16 && world == 3)) continue;
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << ", world " << world);
            SharesSetting s{GetParam().codec,
                            dtype,
                            {1, 31, 32, 33, 64, 255, 257, 2047, 2048, 2049, kAll ? 9000u : 3001u},
                            world};
            s.shift = world - 1;
            s.feedback = world != 2;
            s.spoilt = world > 1;
            s.scale = 1.0 / static_cast<double>(world);
            PlayedSite site(1);
            compare_shares(s, ++seed, site);
            s.keeps = true;
            compare_shares(s, ++seed, site);
            if (HasFatalFailure()) return;
        }
}

TEST_P(CudaShares, MoreParametersThanATableHasRows) {
    SharesSetting s{GetParam().codec, DDP_F32, {}};
    for (std::size_t i = 0; i < 2 * kEightBitsRows + 20; ++i) s.counts.push_back(1 + i * 7 % 300);
    s.world = 5;
    s.spoilt = true;
    PlayedSite site(1);
    compare_shares(s, 8, site);
}

TEST_P(CudaShares, CooperatingThreads) {
    SharesSetting s{GetParam().codec, DDP_BF16, {1, 70, 300, 40, 1025}};
    s.spoilt = true;
    PlayedSite site(5);
    compare_shares(s, 9, site);
}

}  // namespace
}  // namespace libddp::cuda
