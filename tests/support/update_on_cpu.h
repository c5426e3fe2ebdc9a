// The step of an optimizer that a device takes (device_kernels.h), by the CPU's own functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/device_kernels.h"
#include "kernels/dtype.h"
#include "kernels/exact_sum.h"
#include "kernels/updates.h"

// Numbers of one type as those of another.
inline std::vector<std::byte> converted(const void* from, ddp_dtype from_dtype, ddp_dtype to_dtype,
                                        std::size_t count) {
    std::vector<std::byte> to(count * libddp::dtype_size(to_dtype));
    if (from_dtype == to_dtype)
        std::memcpy(to.data(), from, to.size());
    else
        libddp::cpu::convert(to.data(), to_dtype, from, from_dtype, count);
    return to;
}

inline void update_on_cpu(ddp_update_op op, const ddp_update& item, ddp_dtype values,
                          ddp_dtype gradients) {
    using namespace libddp;
    const ddp_dtype dtype = compute_dtype(values);
    const std::size_t n = item.count;
    if (item.master) {
        const auto rounded = converted(item.master, dtype, values, n);
        const auto given = converted(item.values, values, dtype, n);
        for (std::size_t i = 0; i < n; ++i)
            if (std::memcmp(&rounded[2 * i], static_cast<std::byte*>(item.values) + 2 * i, 2) != 0)
                std::memcpy(static_cast<std::byte*>(item.master) + 4 * i, &given[4 * i], 4);
    }
    void* const exact = item.master ? item.master : item.values;
    std::vector<std::byte> given, direction(n * dtype_size(dtype));
    if (op != DDP_UPDATE_LAMB) given = converted(item.gradients, gradients, dtype, n);
    const cpu::AdamStep adam = cpu::adam_step_of(item.numbers);
    switch (op) {
        case DDP_UPDATE_SGD:
            cpu::sgd_step(exact, given.data(), item.first, n, dtype,
                          cpu::sgd_step_of(item.numbers));
            break;
        case DDP_UPDATE_ADAMW:
            cpu::adamw_step(exact, given.data(), item.first, item.second, n, dtype, adam);
            break;
        default:
            cpu::lamb_direction(direction.data(), exact,
                                op == DDP_UPDATE_LAMB ? nullptr : given.data(), item.first,
                                item.second, n, dtype, adam);
    }
    if (op == DDP_UPDATE_LAMB) {
        cpu::SgdStep along;
        along.rate = adam.rate;
        cpu::sgd_step(exact, direction.data(), nullptr, n, dtype, along);
    }
    if (op == DDP_UPDATE_LAMB_MEASURE) {
        cpu::ExactSum sums[2];
        sums[0].add_squares(exact, n, dtype);
        sums[1].add_squares(direction.data(), n, dtype);
        for (std::size_t s = 0; s < 2; ++s)
            for (std::size_t i = 0; i < cpu::ExactSum::kDigits; ++i)
                item.digits[s * cpu::ExactSum::kDigits + i] +=
                    static_cast<std::uint64_t>(sums[s].digits()[i]);
    }
    if (item.master) cpu::convert(item.values, values, item.master, dtype, n);
}
