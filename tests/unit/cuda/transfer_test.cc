// The transfer kernel, its blocks and threads one after another on the CPU.
#include <algorithm>

#include "unit/cuda/values.h"
#include "util/error.h"

namespace libddp::cuda {
namespace {

using testing_cuda::random_values;
using testing_cuda::same;

struct Work {
    std::size_t tables = 0;
    std::uint64_t blocks = 0;
};

Work transfer_on_cpu(const std::vector<ddp_segment>& segments, ddp_dtype src_dtype,
                     ddp_dtype dst_dtype, double scale) {
    Work work;
    with_formats(src_dtype, dst_dtype, scale, [&](auto from, auto to, auto scales) {
        using From = decltype(from);
        using To = decltype(to);
        each_table(
            segments.data(), segments.size(), sizeof(typename To::Stored), kChunkElements<To>,
            is_complex(src_dtype) ? 2 : 1, factor_of(scale, src_dtype), [&](const Table& table) {
                ++work.tables;
                work.blocks += blocks_of(table);
                for (std::uint64_t block = 0; block < blocks_of(table); ++block)
                    for (std::uint32_t thread = 0; thread < kThreads; ++thread)
                        transfer_thread<From, To, decltype(scales)::value>(table, block, thread);
            });
    });
    return work;
}

// The same on the CPU: widened, scaled, rounded once.
std::vector<std::byte> expected_of(const std::vector<std::byte>& source, std::size_t count,
                                   ddp_dtype src_dtype, ddp_dtype dst_dtype, double scale) {
    std::vector<std::byte> result(count * dtype_size(dst_dtype));
    if (src_dtype == dst_dtype) {
        cpu::scale_copy(result.data(), source.data(), count, src_dtype, scale);
        return result;
    }
    const ddp_dtype wide = src_dtype == DDP_F16 || src_dtype == DDP_BF16 ? DDP_F32 : src_dtype;
    std::vector<std::byte> widened(count * dtype_size(wide));
    cpu::convert(widened.data(), wide, source.data(), src_dtype, count);
    cpu::scale_copy(widened.data(), widened.data(), count, wide, scale);
    cpu::convert(result.data(), dst_dtype, widened.data(), wide, count);
    return result;
}

bool can_convert(ddp_dtype from, ddp_dtype to) {
    return from == to ||
           (is_floating(from) && is_floating(to) && is_complex(from) == is_complex(to));
}

// One tensor in memory that begins `shift` elements after a place aligned to 64 bytes, between
// bytes that must stay.
class Tensor {
public:
    Tensor(std::size_t count, ddp_dtype dtype, std::size_t shift)
        : bytes_(count * dtype_size(dtype)),
          memory_(bytes_ + shift * dtype_size(dtype) + 3 * kGuard, kMark) {
        auto* base = memory_.data() + kGuard;
        base += (64 - address(base) % 64) % 64;
        data_ = base + shift * dtype_size(dtype);
    }
    std::byte* data() const { return data_; }
    bool guards_stand() const {
        return std::all_of(memory_.data(), const_cast<const std::byte*>(data_), is_mark) &&
               std::all_of(const_cast<const std::byte*>(data_ + bytes_),
                           memory_.data() + memory_.size(), is_mark);
    }

private:
    static constexpr std::size_t kGuard = 64;
    static constexpr std::byte kMark{0xa5};
    static bool is_mark(std::byte byte) { return byte == kMark; }
    std::size_t bytes_;
    std::vector<std::byte> memory_;
    std::byte* data_;
};

TEST(CudaTransfer, EveryPairOfTypesAndAlignments) {
    std::mt19937 random(11);
    for (const ddp_dtype from : testing_cuda::kAllTypes)
        for (const ddp_dtype to : testing_cuda::kAllTypes) {
            if (!can_convert(from, to)) continue;
            for (const double scale : {1.0, 1.0 / 3, 0.25})
                for (const std::size_t count : {1u, 2u, 7u, 16u, 33u, 1000u})
                    for (const std::size_t dst_shift : {0u, 1u, 3u})
                        for (const std::size_t src_shift : {0u, 1u, 2u}) {
                            const Tensor source(count, from, src_shift),
                                target(count, to, dst_shift);
                            const auto values = random_values(from, count, random);
                            std::copy(values.begin(), values.end(), source.data());
                            transfer_on_cpu({{target.data(), source.data(), count}}, from, to,
                                            scale);
                            const auto expected = expected_of(values, count, from, to, scale);
                            ASSERT_TRUE(same(target.data(), expected.data(), count, to))
                                << dtype_name(from) << " to " << dtype_name(to) << ", count "
                                << count << ", scale " << scale << ", shifts " << src_shift << " "
                                << dst_shift;
                            ASSERT_TRUE(target.guards_stand() && source.guards_stand())
                                << dtype_name(from) << " to " << dtype_name(to) << ", count "
                                << count;
                        }
        }
}

// More segments than a table has rows, of sizes from nothing to several blocks' work.
TEST(CudaTransfer, ManySegments) {
    std::mt19937 random(13);
    for (const auto& [from, to] : {std::pair<ddp_dtype, ddp_dtype>{DDP_F32, DDP_F32},
                                   {DDP_F32, DDP_F16},
                                   {DDP_BF16, DDP_F32},
                                   {DDP_U8, DDP_U8}}) {
        std::vector<Tensor> sources, targets;
        std::vector<std::vector<std::byte>> values;
        std::vector<ddp_segment> segments;
        std::vector<std::size_t> counts;
        for (int i = 0; i < 3 * kRows; ++i)
            counts.push_back(i % 50 == 49 ? 9000 + random() % 9000 : random() % 70);
        for (const std::size_t count : counts) {
            sources.emplace_back(count, from, random() % 5);
            targets.emplace_back(count, to, random() % 3 == 0 ? random() % 5 : 0);
            values.push_back(random_values(from, count, random));
            std::copy(values.back().begin(), values.back().end(), sources.back().data());
        }
        for (std::size_t i = 0; i < counts.size(); ++i)
            segments.push_back({targets[i].data(), sources[i].data(), counts[i]});
        const Work work = transfer_on_cpu(segments, from, to, 0.5);
        EXPECT_EQ(work.tables, 3u);
        EXPECT_LT(work.blocks, 100u) << "small segments share blocks";
        for (std::size_t i = 0; i < counts.size(); ++i) {
            const auto expected = expected_of(values[i], counts[i], from, to, 0.5);
            ASSERT_TRUE(same(targets[i].data(), expected.data(), counts[i], to)) << "segment " << i;
            ASSERT_TRUE(targets[i].guards_stand()) << "segment " << i;
        }
    }
}

TEST(CudaTransfer, NoSourceGivesZerosAndInPlaceScales) {
    const Tensor zeroed(1000, DDP_F32, 1), scaled(1000, DDP_F64, 0);
    auto* numbers = reinterpret_cast<double*>(scaled.data());
    for (int i = 0; i < 1000; ++i) numbers[i] = i;
    transfer_on_cpu({{zeroed.data(), nullptr, 1000}}, DDP_F32, DDP_F32, 1);
    transfer_on_cpu({{scaled.data(), scaled.data(), 1000}}, DDP_F64, DDP_F64, 0.5);
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(reinterpret_cast<const float*>(zeroed.data())[i], 0);
        ASSERT_EQ(numbers[i], i * 0.5);
    }
    EXPECT_TRUE(zeroed.guards_stand());
}

TEST(CudaTransfer, NothingToDo) {
    EXPECT_EQ(transfer_on_cpu({}, DDP_F32, DDP_F32, 1).tables, 0u);
    EXPECT_EQ(transfer_on_cpu({{nullptr, nullptr, 0}}, DDP_F32, DDP_F32, 1).tables, 0u);
}

TEST(CudaTransfer, RefusesWhatHasNoMeaning) {
    for (const auto& [from, to] : {std::pair<ddp_dtype, ddp_dtype>{DDP_F32, DDP_I32},
                                   {DDP_C64, DDP_F32},
                                   {DDP_U8, DDP_F16},
                                   {0, 0},
                                   {DDP_F32, 77}})
        try {
            transfer_on_cpu({}, from, to, 1);
            FAIL() << from << " to " << to;
        } catch (const Error& error) {
            EXPECT_EQ(error.info().code, DDP_ERROR_UNSUPPORTED);
        }
}

}  // namespace
}  // namespace libddp::cuda
