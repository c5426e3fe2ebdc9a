// Host memory for buckets.
#pragma once

#include <cstddef>
#include <memory>

namespace libddp {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector

constexpr std::size_t align_up(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Zeroed, aligned to kAlignment. Throws OUT_OF_MEMORY with the number of bytes.
std::shared_ptr<std::byte> allocate_zeroed(std::size_t bytes);

}  // namespace libddp
