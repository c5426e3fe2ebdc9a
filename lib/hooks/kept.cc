#include "hooks/kept.h"

#include <cstring>
#include <utility>

#include "device/dtype.h"
#include "device/host_copy.h"
#include "device/kernels.h"
#include "device/memory.h"

namespace libddp {

std::size_t Kept::bytes() const {
    return count() * dtype_size(dtype);
}

Kept Kept::zeros(ddp_dtype dtype, std::size_t rows, std::size_t columns, StreamPtr home) {
    Kept kept{dtype, rows, columns, nullptr, std::move(home)};
    kept.memory = kept.home ? kept.home->allocate(kept.bytes()) : allocate_zeroed(kept.bytes());
    return kept;
}

Kept Kept::loaded(const HookState::Array& array) {
    Kept kept = zeros(array.dtype, array.bytes / dtype_size(array.dtype), 1, array.home);
    if (kept.home)
        copy_in(*kept.home, kept.memory.get(), array.data, array.bytes, array.timeout_ms);
    else
        std::memcpy(kept.memory.get(), array.data, array.bytes);
    return kept;
}

void Kept::convert_to(ddp_dtype wanted) {
    if (dtype == wanted) return;
    Kept other = zeros(wanted, rows, columns, home);
    if (home)
        home->transfer({{other.memory.get(), memory.get(), count()}}, dtype, wanted, 1);
    else
        cpu::convert(other.memory.get(), wanted, memory.get(), dtype, count());
    *this = std::move(other);
}

void Kept::bring_to(const StreamPtr& wanted) {
    if (home || !wanted) return;
    const auto pinned = allocate_pinned(wanted->device().kind, bytes());
    std::memcpy(pinned.get(), memory.get(), bytes());
    const auto there = wanted->allocate(bytes());
    wanted->copy_to_device(there.get(), pinned.get(), bytes());
    home = wanted;
    memory = {there.get(), [there, pinned, copied = wanted->record()](std::byte*) { release_after(pinned, copied); }};
}

}  // namespace libddp
