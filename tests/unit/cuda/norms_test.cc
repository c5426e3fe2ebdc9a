// The kernels of norms, their blocks played by one thread or several, against the CPU's own sums.
#include "kernels/cuda/norms.h"

#include <cmath>
#include <limits>

#include "gpu/on_cpu/block_threads.h"
#include "unit/cuda/values.h"
#include "util/error.h"

namespace libddp::cuda {
namespace {

using testing_cuda::random_values;
using Bytes = std::vector<std::byte>;

constexpr ddp_dtype kTypes[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_C64, DDP_C128};
constexpr ddp_norm_kind kKinds[] = {DDP_NORM_MAGNITUDES, DDP_NORM_SQUARES, DDP_NORM_LARGEST};

std::vector<double> play(std::uint32_t thread_count, const std::vector<Bytes>& lists,
                         ddp_dtype dtype, ddp_norm_kind kind) {
    std::vector<double> terms(lists.size(), -1);
    std::vector<ddp_norm_item> items;
    std::size_t parts = 0;
    for (std::size_t i = 0; i < lists.size(); ++i) {
        const std::size_t count = lists[i].size() / dtype_size(dtype);
        items.push_back({lists[i].data(), count, &terms[i]});
        parts += norm_order::parts(2 * count);
    }
    std::vector<double> scratch(parts, -1);
    with_norm_format(dtype, kind, [&](auto one, auto format) {
        using Kind = decltype(one);
        each_norm_table(
            items.data(), items.size(), dtype, kind, scratch.data(), [&](const NormTable& table) {
                NormShared shared;
                on_cpu::play_block(thread_count, [&](const auto& threads) {
                    for (std::uint64_t block = 0; block < blocks_of(table); ++block)
                        sum_norm_parts<Kind, decltype(format)>(threads, shared, table, block);
                    for (std::int32_t row = 0; row < table.rows; ++row)
                        sum_norm_row<Kind>(threads, shared, table, static_cast<std::uint32_t>(row));
                });
            });
    });
    return terms;
}

// Any NaN is as good as another.
void expect_the_bits_of_the_cpu(std::uint32_t thread_count, const std::vector<Bytes>& lists,
                                ddp_dtype dtype) {
    for (const ddp_norm_kind kind : kKinds) {
        const std::vector<double> terms = play(thread_count, lists, dtype, kind);
        for (std::size_t i = 0; i < lists.size(); ++i) {
            const std::size_t count = lists[i].size() / dtype_size(dtype);
            const double want =
                cpu::norm_terms(lists[i].data(), count, dtype, static_cast<cpu::NormKind>(kind));
            if (std::isnan(want))
                ASSERT_TRUE(std::isnan(terms[i])) << dtype_name(dtype) << " " << kind << " " << i;
            else
                ASSERT_EQ(terms[i], want)
                    << dtype_name(dtype) << " " << kind << ", list " << i << " of " << count;
        }
    }
}

Bytes waves(std::size_t count, ddp_dtype dtype) {
    const ddp_dtype part = part_of(dtype);
    std::vector<double> numbers(count * (is_complex(dtype) ? 2 : 1));
    for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = std::sin(static_cast<double>(i + count) * 1.7) * (i % 3 == 0 ? 1e-3 : 100);
    Bytes bytes(count * dtype_size(dtype));
    if (part == DDP_F64)
        std::memcpy(bytes.data(), numbers.data(), bytes.size());
    else
        cpu::convert(bytes.data(), part, numbers.data(), DDP_F64, numbers.size());
    return bytes;
}

// More lists than one launch takes, empty ones among them, and one of more parts than totals.
TEST(CudaNorms, HaveTheBitsOfTheCpu) {
    for (const ddp_dtype dtype : kTypes) {
        std::vector<Bytes> lists;
        for (const std::size_t count : {0, 1, 15, 16, 17, 1023, 1024, 1025, 20'003, 300'007})
            lists.push_back(waves(count, dtype));
        for (std::size_t i = 0; i < 150; ++i) lists.push_back(waves(i * 31 % 2100, dtype));
        expect_the_bits_of_the_cpu(1, lists, dtype);
    }
}

TEST(CudaNorms, NanAndInfinity) {
    std::mt19937 random(23);
    for (const ddp_dtype dtype : kTypes) {
        std::vector<Bytes> lists;
        for (std::size_t count = 1; count < 60; ++count)
            lists.push_back(random_values(dtype, count, random));
        expect_the_bits_of_the_cpu(1, lists, dtype);
    }
}

TEST(CudaNorms, ThreadsOfABlockTogether) {
    for (const std::uint32_t thread_count : {3u, 8u})
        expect_the_bits_of_the_cpu(
            thread_count, {waves(20'003, DDP_F32), waves(0, DDP_F32), waves(40, DDP_F32)}, DDP_F32);
}

TEST(CudaNorms, IntegersAreRefused) {
    const auto ignore = [](auto, auto) {};
    EXPECT_THROW(with_norm_format(DDP_I32, DDP_NORM_SQUARES, ignore), Error);
}

}  // namespace
}  // namespace libddp::cuda
