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

Kept Kept::zeros(ddp_dtype dtype, std::size_t rows, std::size_t columns, const StreamPtr& home) {
    Kept kept;
    kept.dtype = dtype;
    kept.rows = rows;
    kept.columns = columns;
    kept.home = home;
    kept.memory = home ? home->allocate(kept.bytes()) : allocate_zeroed(kept.bytes());
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
    if (upload_ && upload_->done()) upload_ = nullptr;
    if (home == wanted) return;
    const auto values = on_host();
    Kept other = zeros(dtype, rows, columns, wanted);
    if (wanted)
        other.upload_ = std::make_shared<const Upload>(wanted, other.memory.get(), values.get(), bytes());
    else
        std::memcpy(other.memory.get(), values.get(), bytes());
    *this = std::move(other);
}

void Kept::copy_from(const void* values, ddp_dtype type, std::size_t row_count, std::size_t column_count) {
    if (dtype != type || rows != row_count || columns != column_count || !memory || home)
        *this = zeros(type, row_count, column_count);
    std::memcpy(memory.get(), values, bytes());
}

std::shared_ptr<const std::byte> Kept::on_host() const {
    if (!home) return memory;
    const auto copy = allocate_zeroed(bytes());
    download(home, copy.get(), memory.get(), bytes());
    return copy;
}

}  // namespace libddp
