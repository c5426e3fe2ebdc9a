#include "hooks/kept.h"

#include <cstring>
#include <utility>

#include "device/host_copy.h"
#include "device/memory.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"

namespace libddp {

std::size_t Kept::bytes() const {
    return count() * dtype_size(dtype);
}

Kept Kept::zeros(ddp_dtype dtype, std::size_t rows, std::size_t columns, StreamPtr home) {
    Kept kept{dtype, rows, columns, nullptr, std::move(home)};
    kept.memory = kept.home ? kept.home->allocate(kept.bytes()) : allocate_zeroed(kept.bytes());
    return kept;
}

Kept Kept::loaded(const HookState::Array& array, HostCopies* copies) {
    Kept kept = zeros(array.dtype, array.bytes / dtype_size(array.dtype), 1, array.home);
    if (kept.home)
        copies->in(*kept.home, kept.memory.get(), array.data, array.bytes);
    else
        std::memcpy(kept.memory.get(), array.data, array.bytes);
    return kept;
}

bool Kept::convert_to(ddp_dtype wanted) {
    if (dtype == wanted) return false;
    Kept other = zeros(wanted, rows, columns, home);
    if (home)
        on_device::transfer(*home, {{other.memory.get(), memory.get(), count()}}, dtype, wanted, 1);
    else
        cpu::convert(other.memory.get(), wanted, memory.get(), dtype, count());
    *this = std::move(other);
    return true;
}

void Kept::bring_to(const StreamPtr& wanted, HostCopies& copies) {
    Kept there = zeros(dtype, rows, columns, wanted);
    copies.in(*wanted, there.memory.get(), memory.get(), bytes());
    *this = std::move(there);
}

void Kept::separate() {
    Kept own = zeros(dtype, rows, columns, home);
    transfer(home, {{own.memory.get(), memory.get(), count()}}, dtype);
    *this = std::move(own);
}

}  // namespace libddp
