#include "hooks/kept.h"

#include <cstring>
#include <utility>

#include "device/dtype.h"
#include "device/kernels.h"
#include "device/memory.h"

namespace libddp {

std::size_t Kept::bytes() const {
    return count() * dtype_size(dtype);
}

Kept Kept::zeros(ddp_dtype dtype, std::size_t rows, std::size_t columns) {
    Kept kept{dtype, rows, columns, nullptr};
    kept.memory = allocate_zeroed(kept.bytes());
    return kept;
}

void Kept::convert_to(ddp_dtype wanted) {
    if (dtype == wanted) return;
    Kept other = zeros(wanted, rows, columns);
    cpu::convert(other.memory.get(), wanted, memory.get(), dtype, count());
    *this = std::move(other);
}

void Kept::copy_from(const void* values, ddp_dtype type, std::size_t row_count, std::size_t column_count) {
    if (dtype != type || rows != row_count || columns != column_count || !memory)
        *this = zeros(type, row_count, column_count);
    std::memcpy(memory.get(), values, bytes());
}

}  // namespace libddp
