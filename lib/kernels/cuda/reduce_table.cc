#include "kernels/arithmetic.h"
#include "kernels/cuda/reduction.h"
#include "kernels/cuda/tables.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::cuda {

ReduceTable reduce_table(void* out, const void* const* inputs, std::size_t input_count, std::size_t count,
                         ddp_dtype dtype, ddp_reduce_op op, double scale) {
    if (!cpu::can_reduce(dtype, op))
        fail(DDP_ERROR_UNSUPPORTED, "reduction ", op, " of elements of type ", dtype_name(dtype), " is not supported");
    if (input_count == 0 || input_count > static_cast<std::size_t>(kInputs))
        fail(DDP_ERROR_LIMIT, "a reduction on a GPU has 1 to ", kInputs, " inputs, not ", input_count);
    ReduceTable table;
    table.out = out;
    table.count = is_complex(dtype) && op != DDP_PROD ? 2 * count : count;
    table.factor = factor_of(scale, dtype);
    table.inputs = static_cast<std::int32_t>(input_count);
    table.op = op;
    std::uint64_t bits = address(out);
    for (std::size_t i = 0; i < input_count; ++i) {
        table.input[i] = inputs[i];
        bits |= address(inputs[i]);
    }
    table.aligned = (bits & 15u) == 0;
    return table;
}

}  // namespace libddp::cuda
