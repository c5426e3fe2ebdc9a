// The order in which the terms of a norm are added. It depends on nothing but the length of the
// list, so that the CPU and devices give the same bits.
//
// A list is cut into parts. Number i of a part is added to sum i % kSums of that part, and the sums
// of part p to total p % kTotals. Sums, and totals, are added to each other in halves: i + half to
// i, for half = n / 2, n / 4, ..., 1.
#pragma once

#include <cstddef>

#include "ddp/types.h"
#include "kernels/dtype.h"

namespace libddp::norm_order {

constexpr std::size_t kPart = 1024, kSums = 16, kTotals = 256;

// |z|^2 = re^2 + im^2, so a sum of squares sees two numbers for each complex one.
inline std::size_t numbers(std::size_t count, ddp_dtype dtype, bool squares) {
    return squares && is_complex(dtype) ? 2 * count : count;
}
constexpr std::size_t parts(std::size_t numbers) {
    return (numbers + kPart - 1) / kPart;
}

}  // namespace libddp::norm_order
