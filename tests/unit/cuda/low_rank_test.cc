// The kernels of PowerSGD, their blocks played by one thread or several, against the CPU's own
// functions.
#include "kernels/cuda/low_rank.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "gpu/on_cpu/block_threads.h"
#include "unit/cuda/low_rank_operands.h"
#include "unit/cuda/values.h"

namespace libddp::cuda {
namespace {

using namespace testing_cuda;

struct Matrices {
    Matrices(ddp_dtype dtype, const std::vector<Shape>& shapes, bool with_errors)
        : items(low_rank_items(dtype, shapes, with_errors, std::ref(memory))) {}
    Matrices(const Matrices&) = delete;
    Matrices& operator=(const Matrices&) = delete;

    HostMemory memory;
    std::vector<ddp_low_rank> items;
};

void run_with(std::uint32_t thread_count, ddp_low_rank_op op,
              const std::vector<ddp_low_rank>& items, ddp_dtype dtype) {
    each_low_rank_launch(
        op, items.data(), items.size(), dtype,
        [&](auto product, auto format, auto tile, const LowRankTable& table) {
            using Product = decltype(product);
            using Format = decltype(format);
            typename Product::template Shared<typename Format::Compute, tile> shared;
            on_cpu::play_block(thread_count, [&](const on_cpu::BlockThreads& threads) {
                for (std::uint64_t block = 0; block < table.blocks; ++block)
                    run_block<Product, Format, tile>(threads, shared, table, block);
            });
        });
}

void expect_like_the_cpu(ddp_low_rank_op op, ddp_dtype dtype, bool with_errors) {
    Matrices expected(dtype, kShapes, with_errors), actual(dtype, kShapes, with_errors);
    cpu::low_rank(op, expected.items, dtype);
    run_with(1, op, actual.items, dtype);
    if (op == DDP_LOW_RANK_RESTORE) {
        EXPECT_EQ(actual.memory.all(), expected.memory.all()) << dtype_name(dtype);
        return;
    }
    const std::size_t each = with_errors ? 6 : 5;
    std::size_t i = 0;
    for (auto wanted = expected.memory.all().begin(); const Bytes& got : actual.memory.all()) {
        const std::size_t operand = i++ % each;
        const ddp_dtype type = operand == 0 ? dtype : compute_dtype(dtype);
        const auto a = numbers_of(got, type), b = numbers_of(*wanted++, type);
        if (operand == kParts) continue;
        const double tolerance = (dtype == DDP_F64 ? 1e-14 : 1e-6) * 1000;
        for (std::size_t k = 0; k < a.size(); ++k)
            ASSERT_NEAR(a[k], b[k], tolerance) << dtype_name(dtype) << " " << i << ", " << k;
    }
}

TEST(CudaLowRank, ProductsAreThoseOfTheCpu) {
    for (const ddp_low_rank_op op : kProducts)
        for (const ddp_dtype dtype : kRealTypes)
            for (const bool with_errors : {false, true})
                expect_like_the_cpu(op, dtype, with_errors);
}

TEST(CudaLowRank, TheNumberOfThreadsChangesNoBit) {
    for (const ddp_low_rank_op op : kProducts)
        for (const ddp_dtype dtype : {DDP_BF16, DDP_F64}) {
            const std::vector<Shape> shapes{{9, 150, 3}, {17, 40, 2}, {300, 40, 3}};
            Matrices one(dtype, shapes, true), several(dtype, shapes, true);
            run_with(1, op, one.items, dtype);
            run_with(3, op, several.items, dtype);
            EXPECT_EQ(one.memory.all(), several.memory.all());
        }
}

// Q with its columns at other places, where they cannot be read four at a time.
TEST(CudaLowRank, AlignmentChangesNoBit) {
    constexpr std::size_t kColumns = 132, kRank = 2, kOdd = kColumns + 1;
    for (const ddp_low_rank_op op : kProducts) {
        Matrices aligned(DDP_F32, {{300, kColumns, kRank}}, true),
            odd(DDP_F32, {{300, kColumns, kRank}}, true);
        std::vector<float> q(kRank * kOdd), own_q(kRank * kOdd);
        ddp_low_rank &a = aligned.items[0], &b = odd.items[0];
        const auto spread = [&](std::vector<float>& to, const void* from) {
            for (std::size_t k = 0; k < kRank; ++k)
                std::copy_n(static_cast<const float*>(from) + k * a.q_stride, kColumns,
                            to.data() + k * kOdd);
        };
        spread(q, b.q);
        spread(own_q, b.own_q);
        b.q = q.data();
        b.own_q = own_q.data();
        b.q_stride = kOdd;
        run_with(1, op, aligned.items, DDP_F32);
        run_with(1, op, odd.items, DDP_F32);
        std::vector<float> wanted(kRank * kOdd);
        spread(wanted, a.own_q);
        EXPECT_EQ(own_q, wanted);
        for (auto [one, other, count] : {std::tuple{a.p, b.p, a.p_stride * kRank},
                                         {a.gradient, b.gradient, 300 * kColumns},
                                         {a.error, b.error, 300 * kColumns}})
            EXPECT_EQ(std::memcmp(one, other, count * sizeof(float)), 0) << op;
    }
}

// Also beside others with more columns, in other blocks and other launches.
TEST(CudaLowRank, WhatElseIsInAListChangesNoBit) {
    std::vector<Shape> many(100, {9, 150, 4});
    many[77] = {17, 40, 1};
    for (const ddp_low_rank_op op : kProducts) {
        Matrices all(DDP_F32, many, true), alone(DDP_F32, many, true);
        run_with(1, op, all.items, DDP_F32);
        for (const ddp_low_rank& item : alone.items) run_with(1, op, {item}, DDP_F32);
        EXPECT_EQ(all.memory.all(), alone.memory.all());
    }
}

TEST(CudaLowRank, FlagsSayWhatIsDone) {
    std::uint32_t no = 0, yes = 1;
    for (const ddp_dtype dtype : kRealTypes) {
        Matrices before(dtype, {{9, 20, 2}}, true), m(dtype, {{9, 20, 2}}, true);
        m.items[0].only_if = &no;
        for (const ddp_low_rank_op op : kProducts) run_with(1, op, m.items, dtype);
        EXPECT_EQ(m.memory.all(), before.memory.all());
        m.items[0].only_if = &yes;
        m.items[0].left_out[0] = &no;
        m.items[0].left_out[1] = &yes;
        run_with(1, DDP_LOW_RANK_RESTORE, m.items, dtype);
        for (const double x : numbers_of(m.memory.all().front(), dtype)) EXPECT_TRUE(std::isnan(x));
        EXPECT_EQ(m.memory.all().back(), before.memory.all().back()) << "the error stays";
    }
}

TEST(CudaLowRank, ARowThatIsNotFiniteIsSeenInP) {
    for (const float bad : {NAN, INFINITY, -INFINITY})
        for (const std::size_t column : {0u, 31u, 36u}) {
            Matrices m(DDP_F32, {{6, 37, 2}}, true);
            static_cast<float*>(m.items[0].gradient)[3 * 37 + column] = bad;
            std::fill_n(static_cast<float*>(m.items[0].q), 2 * 38, 0.0f);
            run_with(1, DDP_LOW_RANK_PROJECT, m.items, DDP_F32);
            for (std::size_t i = 0; i < 6; ++i)
                EXPECT_EQ(std::isfinite(static_cast<float*>(m.items[0].p)[i]), i != 3) << i;
        }
}

TEST(CudaLowRank, OtherTypesAreRefused) {
    const Matrices m(DDP_F32, {{2, 2, 1}}, false);
    for (const ddp_dtype dtype : {DDP_I32, DDP_C64})
        EXPECT_THROW(run_with(1, DDP_LOW_RANK_PROJECT, m.items, dtype), Error);
}

struct Thins {
    Thins(ddp_dtype dtype, bool qr) : items(thin_items(dtype, qr, std::ref(memory))) {}
    Thins(const Thins&) = delete;
    Thins& operator=(const Thins&) = delete;

    HostMemory memory;
    std::vector<ddp_thin> items;
};

void run_with(std::uint32_t thread_count, ddp_thin_op op, const std::vector<ddp_thin>& items,
              ddp_dtype dtype, const ddp_thin_rules& rules) {
    each_thin_table(items.data(), items.size(), rules, [&](const ThinTable& table) {
        thin::Shared shared;
        on_cpu::play_block(thread_count, [&](const on_cpu::BlockThreads& threads) {
            for (int i = 0; i < table.rows; ++i)
                dtype == DDP_F64 ? run_thin<F64>(threads, shared, op, table.row[i], table.rules)
                                 : run_thin<F32>(threads, shared, op, table.row[i], table.rules);
        });
    });
}

// The CPU has a way of its own to add up a whole piece.
TEST(CudaThin, AnyNumberOfThreadsHasTheBitsOfTheCpu) {
    const ddp_thin_rules rules{77, 0.01, 5};
    for (const ddp_dtype dtype : {DDP_F32, DDP_F64})
        for (const bool qr : {false, true})
            for (const std::uint32_t thread_count : {1u, 3u}) {
                Thins expected(dtype, qr), actual(dtype, qr);
                for (const ddp_thin_op op : kThinWork) {
                    cpu::thin(op, expected.items, dtype, rules);
                    run_with(thread_count, op, actual.items, dtype, rules);
                    EXPECT_EQ(expected.memory.all(), actual.memory.all())
                        << op << ", " << thread_count << " threads";
                }
            }
}

TEST(CudaThin, WhatIsBadIsMarkedAndLeftAlone) {
    for (const float bad : {NAN, INFINITY})
        for (const std::uint32_t thread_count : {1u, 3u}) {
            Thins thins(DDP_F32, false);
            ddp_thin& last = thins.items.back();
            static_cast<float*>(last.data)[12345] = bad;
            run_with(thread_count, DDP_THIN_CHECK, thins.items, DDP_F32, {});
            for (const ddp_thin& item : thins.items) EXPECT_EQ(*item.bad, &item == &last ? 1u : 0u);
            const auto before = thins.memory.all();
            for (const ddp_thin_op op : {DDP_THIN_ORTHOGONALIZE, DDP_THIN_KEEP})
                run_with(thread_count, op, {last}, DDP_F32, {});
            EXPECT_EQ(thins.memory.all(), before);
        }
}

TEST(CudaThin, PartsThatAreNotFiniteAreLeftOut) {
    for (const ddp_dtype dtype : kRealTypes)
        for (const std::uint32_t thread_count : {1u, 3u}) {
            const Bytes good_before = waves(1000, dtype, 0.3);
            Bytes good = good_before, bad = good;
            const double nan = NAN;
            cpu::convert(bad.data() + 700 * dtype_size(dtype), dtype, &nan, DDP_F64, 1);
            const Bytes bad_before = bad;
            double marks[2] = {};
            const std::vector<ddp_doubt> parts{{good.data(), 1000, &marks[0]},
                                               {bad.data(), 1000, &marks[1]}};
            const auto run = [&](std::uint32_t only_if) {
                each_doubt_table(
                    parts.data(), parts.size(), &only_if, [&](const DoubtTable& table) {
                        with_real_format(dtype, [&](auto format) {
                            thin::Shared shared;
                            on_cpu::play_block(
                                thread_count, [&](const on_cpu::BlockThreads& threads) {
                                    for (int i = 0; i < table.rows; ++i)
                                        run_leave_out<decltype(format)>(
                                            threads, shared, table.row[i], table.only_if);
                                });
                        });
                    });
            };
            run(0);
            EXPECT_EQ(bad, bad_before);
            run(1);
            EXPECT_EQ(good, good_before);
            EXPECT_EQ(marks[0], 0);
            EXPECT_EQ(bad, Bytes(bad.size()));
            double mark = 0;
            cpu::convert(&mark, DDP_F64, &marks[1], compute_dtype(dtype), 1);
            EXPECT_TRUE(std::isnan(mark));
        }
}

}  // namespace
}  // namespace libddp::cuda
