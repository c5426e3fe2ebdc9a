// The vectorised part of first_nonfinite().
#pragma once

#include <cstddef>
#include <cstdint>

namespace libddp::cpu {

// Whether any of the numbers, of 2, 4 or 8 bytes each, has all bits of its exponent set. to: where
// they are copied meanwhile; null: nowhere.
bool any_nonfinite(void* to, const void* numbers, std::size_t count, std::uint64_t exponent,
                   std::size_t size);

}  // namespace libddp::cpu
