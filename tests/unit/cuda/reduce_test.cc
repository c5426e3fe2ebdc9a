// The reduce kernel, its threads one after another on the CPU, against the CPU's own reduction.
#include "kernels/cuda/reduction.h"
#include "unit/cuda/values.h"
#include "util/error.h"

namespace libddp::cuda {
namespace {

using testing_cuda::random_values;
using testing_cuda::same;

void reduce_on_cpu(void* out, const std::vector<const void*>& inputs, std::size_t count,
                   ddp_dtype dtype, ddp_reduce_op op, double scale) {
    const ReduceTable table =
        reduce_table(out, inputs.data(), inputs.size(), count, dtype, op, scale);
    with_reduce_format(dtype, op, [&](auto format) {
        using Format = decltype(format);
        // Some threads more than there is work for, as in the last block of a grid.
        const std::uint64_t threads = table.count / kReduceElements<Format> + 3;
        for (std::uint64_t thread = 0; thread < threads; ++thread)
            reduce_thread<Format>(table, thread);
    });
}

// cpu::reduce promises its bits for values whose signs of zero and NaNs are not looked at.
TEST(CudaReduce, EveryTypeAndOperation) {
    std::mt19937 random(17);
    for (const ddp_dtype dtype : testing_cuda::kAllTypes)
        for (const ddp_reduce_op op : {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX}) {
            if (!cpu::can_reduce(dtype, op)) continue;
            for (const std::size_t ranks : {1u, 2u, 5u})
                for (const std::size_t count : {1u, 15u, 64u, 1001u})
                    for (const std::size_t shift : {0u, 1u})
                        for (const double scale : {1.0, 1.0 / 3}) {
                            std::vector<std::vector<std::byte>> values;
                            std::vector<const void*> inputs;
                            for (std::size_t rank = 0; rank < ranks; ++rank)
                                values.push_back(random_values(dtype, count + 1, random));
                            const std::size_t offset = shift * dtype_size(dtype);
                            for (auto& input : values) inputs.push_back(input.data() + offset);
                            std::vector<std::byte> expected(count * dtype_size(dtype));
                            cpu::reduce(expected.data(), inputs.data(), ranks, count, dtype, op,
                                        scale);
                            // In the place of the last input, which is allowed.
                            std::byte* out = values.back().data() + offset;
                            reduce_on_cpu(out, inputs, count, dtype, op, scale);
                            ASSERT_TRUE(same(out, expected.data(), count, dtype))
                                << dtype_name(dtype) << ", op " << op << ", " << ranks
                                << " ranks, count " << count << ", scale " << scale << ", shift "
                                << shift;
                        }
        }
}

TEST(CudaReduce, Refuses) {
    float value = 0;
    const std::vector<const void*> too_many(kInputs + 1, &value);
    const auto code_of = [&](const std::vector<const void*>& inputs, ddp_dtype dtype,
                             ddp_reduce_op op) -> ddp_status {
        try {
            reduce_table(&value, inputs.data(), inputs.size(), 1, dtype, op, 1);
        } catch (const Error& error) {
            return error.info().code;
        }
        return DDP_OK;
    };
    EXPECT_EQ(code_of(too_many, DDP_F32, DDP_SUM), DDP_ERROR_LIMIT);
    EXPECT_EQ(code_of({&value}, DDP_C64, DDP_MAX), DDP_ERROR_UNSUPPORTED);
    EXPECT_EQ(code_of({&value}, DDP_F32, DDP_SUM), DDP_OK);
}

}  // namespace
}  // namespace libddp::cuda
