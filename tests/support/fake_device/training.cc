#include "support/fake_device/training.h"

#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/exact_sum.h"
#include "support/fake_device/memory.h"
#include "support/fake_device/stream.h"
#include "support/update_on_cpu.h"

namespace fake {
namespace {

template <class T>
T* seen(int32_t device, T* memory, size_t bytes) {
    if (!memory || bytes == 0) return nullptr;
    return reinterpret_cast<T*>(Memory::instance().alias(device, memory, bytes));
}

}  // namespace

ddp_status norm_terms(int32_t device, void* stream, const ddp_norm_item* items, size_t count,
                      ddp_dtype dtype, ddp_norm_kind kind, void*, ddp_device_failure*) {
    Stream::of(device, stream)
        ->enqueue([=, all = std::vector<ddp_norm_item>(items, items + count)] {
            for (const auto& item : all)
                *seen(device, item.terms, sizeof *item.terms) = libddp::cpu::norm_terms(
                    seen(device, static_cast<const char*>(item.data),
                         item.count * libddp::dtype_size(dtype)),
                    item.count, dtype, static_cast<libddp::cpu::NormKind>(kind));
        });
    return DDP_OK;
}

ddp_status update(int32_t device, void* stream, ddp_update_op op, const ddp_update* items,
                  size_t count, ddp_dtype values, ddp_dtype gradients, ddp_device_failure*) {
    Stream::of(device, stream)
        ->enqueue([=, all = std::vector<ddp_update>(items, items + count)]() mutable {
            for (auto& item : all) {
                const size_t bytes = item.count * libddp::dtype_size(libddp::compute_dtype(values));
                for (void** state : {&item.master, &item.first, &item.second})
                    *state = seen(device, *state, bytes);
                item.values = seen(device, item.values, item.count * libddp::dtype_size(values));
                item.gradients = seen(device, static_cast<const char*>(item.gradients),
                                      item.count * libddp::dtype_size(gradients));
                item.digits = seen(device, item.digits, 2 * sizeof(libddp::cpu::ExactSum::Digits));
                update_on_cpu(op, item, values, gradients);
            }
        });
    return DDP_OK;
}

}  // namespace fake
