// Numbers that a hook keeps from step to step, of f32 or f64: an error (one column), or a Q. They lie where the gradients do.
#pragma once

#include <cstddef>
#include <memory>

#include "ddp/types.h"
#include "device/host_copy.h"

namespace libddp {

struct Kept {
    ddp_dtype dtype = DDP_F32;
    std::size_t rows = 0, columns = 0;
    std::shared_ptr<std::byte> memory;
    StreamPtr home;  // of a device's memory, in whose order it is used; null: of the CPU

    std::size_t count() const { return rows * columns; }
    std::size_t bytes() const;
    // New memory, zeroed.
    static Kept zeros(ddp_dtype dtype, std::size_t rows, std::size_t columns, const StreamPtr& home = nullptr);
    // A hook that is wrapped to see another type, or no longer, goes on with what it has kept.
    void convert_to(ddp_dtype wanted);
    // What was loaded is on the CPU until it is used. Does not wait.
    void bring_to(const StreamPtr& wanted);
    // From memory of the CPU, to it.
    void copy_from(const void* values, ddp_dtype type, std::size_t row_count, std::size_t column_count);
    // On the CPU: the memory itself, or a copy, which is waited for.
    std::shared_ptr<const std::byte> on_host() const;

private:
    std::shared_ptr<const Upload> upload_;  // while it may be under way
};

}  // namespace libddp
