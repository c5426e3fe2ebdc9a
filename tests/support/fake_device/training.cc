#include "support/fake_device/training.h"

#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "support/fake_device/memory.h"
#include "support/fake_device/stream.h"

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

}  // namespace fake
