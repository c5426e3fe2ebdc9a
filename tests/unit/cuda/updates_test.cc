// The kernels of optimizers, their blocks played by one thread or several, against the CPU's own
// steps: the same bits.
#include "kernels/cuda/updates.h"

#include <gtest/gtest.h>

#include <functional>

#include "gpu/on_cpu/block_threads.h"
#include "unit/cuda/update_items.h"
#include "util/error.h"

namespace libddp::cuda {
namespace {

using namespace testing_cuda;

void play(std::uint32_t thread_count, ddp_update_op op, const std::vector<ddp_update>& items,
          ddp_dtype values, ddp_dtype gradients) {
    with_update(op, values, gradients, [&](auto method, auto format) {
        each_update_table(items.data(), items.size(), gradients, [&](const UpdateTable& table) {
            UpdateShared shared;
            on_cpu::play_block(thread_count, [&](const auto& threads) {
                for (std::uint64_t block = 0; block < table.chunks; ++block)
                    update_block<decltype(method), decltype(format)>(threads, shared, table, block);
            });
        });
    });
}

void expect_the_bits_of_the_cpu(std::uint32_t thread_count, const std::vector<std::size_t>& counts,
                                ddp_dtype values, ddp_dtype gradients) {
    for (const UpdateCase& test : kUpdates) {
        HostMemory expected, actual;
        const auto wanted = update_items(test, counts, values, gradients, std::ref(expected));
        const auto items = update_items(test, counts, values, gradients, std::ref(actual));
        for (int step = 0; step < 2; ++step) {
            for (const ddp_update& item : wanted) update_on_cpu(test.op, item, values, gradients);
            play(thread_count, test.op, items, values, gradients);
        }
        ASSERT_EQ(with_carried_digits(actual.all(), values),
                  with_carried_digits(expected.all(), values))
            << test.name << ", values " << dtype_name(values) << ", gradients "
            << dtype_name(gradients);
    }
}

TEST(CudaUpdates, HaveTheBitsOfTheCpu) {
    for (const ddp_dtype values : kRealTypes)
        for (const ddp_dtype gradients : kRealTypes)
            expect_the_bits_of_the_cpu(1, update_counts(), values, gradients);
}

TEST(CudaUpdates, ThreadsOfABlockTogether) {
    for (const std::uint32_t thread_count : {3u, 8u})
        expect_the_bits_of_the_cpu(thread_count, {2100, 1, 40}, DDP_BF16, DDP_F32);
}

TEST(CudaUpdates, OtherTypesAreRefused) {
    EXPECT_THROW(with_update(DDP_UPDATE_SGD, DDP_I32, DDP_F32, [](auto, auto) {}), Error);
    EXPECT_THROW(with_update(DDP_UPDATE_SGD, DDP_F32, DDP_C64, [](auto, auto) {}), Error);
}

}  // namespace
}  // namespace libddp::cuda
