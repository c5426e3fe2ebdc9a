#include "support/fake_device/low_rank.h"

#include <vector>

#include "kernels/dtype.h"
#include "kernels/low_rank.h"
#include "support/fake_device/memory.h"
#include "support/fake_device/stream.h"

namespace fake {
namespace {

// Replaces a pointer, unless it is null, by what the device sees.
template <class T>
void reach(int32_t device, T*& pointer, size_t bytes) {
    if (pointer) pointer = reinterpret_cast<T*>(Memory::instance().alias(device, pointer, bytes));
}
void reach(int32_t device, void*& pointer, size_t bytes) {
    if (pointer) pointer = Memory::instance().alias(device, pointer, bytes);
}

ddp_low_rank reached(int32_t device, ddp_low_rank item, ddp_low_rank_op op, ddp_dtype dtype) {
    const size_t size = libddp::dtype_size(libddp::compute_dtype(dtype)),
                 elements = item.rows * item.columns;
    const size_t q_bytes = ((item.rank - 1) * item.q_stride + item.columns) * size;
    reach(device, item.gradient, elements * libddp::dtype_size(dtype));
    reach(device, item.error, elements * size);
    reach(device, item.p, ((item.rank - 1) * item.p_stride + item.rows) * size);
    if (op != DDP_LOW_RANK_PROJECT_BACK) reach(device, item.q, q_bytes);
    if (op != DDP_LOW_RANK_PROJECT) reach(device, item.own_q, q_bytes);
    if (op == DDP_LOW_RANK_PROJECT_BACK && libddp::low_rank_parts(item.rows) > 1)
        reach(device, item.parts,
              libddp::low_rank_parts(item.rows) * item.rank * item.columns * size);
    reach(device, item.only_if, sizeof *item.only_if);
    for (auto& flag : item.left_out) reach(device, flag, sizeof *flag);
    return item;
}

ddp_thin reached(int32_t device, ddp_thin item, ddp_thin_op op, ddp_dtype dtype) {
    const size_t bytes = item.rows * item.columns * libddp::dtype_size(dtype);
    reach(device, item.data, bytes);
    reach(device, item.bad, sizeof *item.bad);
    if (op == DDP_THIN_KEEP) reach(device, item.kept, bytes);
    if (op == DDP_THIN_ORTHOGONALIZE)
        reach(device, item.workspace, 2 * item.columns * sizeof(double));
    return item;
}

ddp_doubt reached(int32_t device, ddp_doubt item, ddp_dtype dtype) {
    reach(device, item.gradient, item.count * libddp::dtype_size(dtype));
    reach(device, item.mark, libddp::dtype_size(libddp::compute_dtype(dtype)));
    return item;
}

}  // namespace

ddp_status low_rank(int32_t device, void* stream, ddp_low_rank_op op, const ddp_low_rank* items,
                    size_t count, ddp_dtype dtype, ddp_device_failure*) {
    Stream::of(device, stream)
        ->enqueue([=, all = std::vector<ddp_low_rank>(items, items + count)]() mutable {
            for (auto& item : all) item = reached(device, item, op, dtype);
            libddp::cpu::low_rank(op, all, dtype);
        });
    return DDP_OK;
}

ddp_status thin(int32_t device, void* stream, ddp_thin_op op, const ddp_thin* items, size_t count,
                ddp_dtype dtype, const ddp_thin_rules* rules, ddp_device_failure*) {
    Stream::of(device, stream)
        ->enqueue([=, rules = *rules, all = std::vector<ddp_thin>(items, items + count)]() mutable {
            for (auto& item : all) item = reached(device, item, op, dtype);
            libddp::cpu::thin(op, all, dtype, rules);
        });
    return DDP_OK;
}

ddp_status leave_out(int32_t device, void* stream, const ddp_doubt* items, size_t count,
                     ddp_dtype dtype, const uint32_t* only_if, ddp_device_failure*) {
    Stream::of(device, stream)
        ->enqueue([=, all = std::vector<ddp_doubt>(items, items + count)]() mutable {
            const uint32_t* flag = only_if;
            reach(device, flag, sizeof *flag);
            for (auto& item : all) item = reached(device, item, dtype);
            libddp::cpu::leave_out(all, dtype, flag);
        });
    return DDP_OK;
}

}  // namespace fake
