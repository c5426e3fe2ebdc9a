#include "ddp/in_place.h"

#include "capi/context.h"
#include "capi/param.h"
#include "kernels/dtype.h"

using namespace libddp;

namespace {

constexpr std::int64_t kMostSlices = std::int64_t{1} << 20;

// The part of `memory` that begins after `bytes`; null if there is no memory.
void* part(void* memory, std::size_t bytes) {
    return memory ? static_cast<std::byte*>(memory) + bytes : nullptr;
}

// 0 for what add_param() refuses.
std::size_t count_of_slice(const Param& whole) {
    std::int64_t count = 1;
    for (std::size_t i = 1; i < whole.shape.size(); ++i)
        if (whole.shape[i] < 0 || __builtin_mul_overflow(count, whole.shape[i], &count)) return 0;
    return static_cast<std::size_t>(count);
}

std::vector<Param> slices_of(const Param& whole) {
    if (whole.shape.empty() || whole.shape[0] <= 0 || whole.shape[0] > kMostSlices)
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "'", whole.name, "': ",
                  whole.shape.empty() ? str("ndim is 0") : str("shape[0] is ", whole.shape[0]),
                  "; it is the number of slices, from 1 to ", kMostSlices);
    const std::size_t bytes = count_of_slice(whole) * dtype_size(whole.dtype);
    const ddp_dtype of_grad = whole.gradient.dtype == 0 ? whole.dtype : whole.gradient.dtype;
    const std::size_t grad_bytes = count_of_slice(whole) * dtype_size(of_grad);
    std::vector<Param> slices;
    for (std::size_t i = 0; i < static_cast<std::size_t>(whole.shape[0]); ++i) {
        Param& slice = slices.emplace_back(whole);
        slice.name = str(whole.name, "[", i, "]");
        slice.shape.erase(slice.shape.begin());
        slice.data = part(whole.data, i * bytes);
        slice.grad = part(whole.grad, i * grad_bytes);
        slice.in_place.memory = part(whole.in_place.memory, i * grad_bytes);
    }
    return slices;
}

}  // namespace

ddp_status ddp_register_slices(ddp_context* context, const ddp_param_desc* desc, ddp_param* first,
                               ddp_error** error) {
    return guard(error, "ddp_register_slices", [&] {
        Context& c = context_of(context);
        require(first, "first");
        *first = c.register_params(slices_of(read_param(desc, kParamFlags))).front();
    });
}
