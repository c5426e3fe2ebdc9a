// Where numbers are not finite. In blocks that stay in the L1 cache, so that a copy and the look at
// what it has written are one pass over memory.
#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/arithmetic.h"
#include "kernels/cpu/finite_simd.h"
#include "kernels/dtype.h"

namespace libddp::cpu {
namespace {

constexpr std::size_t kBlockBytes = 16'384;

// The numbers in elements of a type of floating point.
struct Numbers {
    std::size_t each = 1;  // in an element
    std::size_t size = 1;  // bytes of one
    std::uint64_t exponent = 0;
};

Numbers numbers_of(ddp_dtype dtype) {
    switch (dtype) {
        case DDP_F16:
            return {1, 2, 0x7c00};
        case DDP_BF16:
            return {1, 2, 0x7f80};
        case DDP_F32:
            return {1, 4, 0x7f800000};
        case DDP_F64:
            return {1, 8, 0x7ff0000000000000};
        case DDP_C64:
            return {2, 4, 0x7f800000};
        default:  // DDP_C128
            return {2, 8, 0x7ff0000000000000};
    }
}

// In little-endian memory a number is its bits.
bool is_nonfinite(const std::byte* at, const Numbers& numbers) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, at, numbers.size);
    return (bits & numbers.exponent) == numbers.exponent;
}

// any(begin, count), in elements, says whether there is a bad number among those of `data`; it may
// write them first.
template <class Any>
std::size_t first_in_blocks(const void* data, std::size_t count, const Numbers& numbers, Any any) {
    const std::size_t element = numbers.each * numbers.size;
    const std::size_t most = kBlockBytes / element;
    for (std::size_t begin = 0; begin < count; begin += most) {
        const std::size_t n = std::min(most, count - begin);
        if (!any(begin, n)) continue;
        const auto* const at = static_cast<const std::byte*>(data) + begin * element;
        // A program that writes after the announcement may have taken it away again.
        for (std::size_t i = 0; i < n * numbers.each; ++i)
            if (is_nonfinite(at + i * numbers.size, numbers)) return begin + i / numbers.each;
    }
    return count;
}

}  // namespace

std::size_t first_nonfinite(const void* data, std::size_t count, ddp_dtype dtype) {
    if (!is_floating(dtype)) return count;
    const Numbers numbers = numbers_of(dtype);
    const auto* const from = static_cast<const std::byte*>(data);
    return first_in_blocks(data, count, numbers, [&](std::size_t begin, std::size_t n) {
        return any_nonfinite(nullptr, from + begin * numbers.each * numbers.size, n * numbers.each,
                             numbers.exponent, numbers.size);
    });
}

std::size_t scale_copy_checked(void* dst, const void* src, std::size_t count, ddp_dtype dtype,
                               double scale) {
    if (!is_floating(dtype)) {
        scale_copy(dst, src, count, dtype, scale);
        return count;
    }
    if (scale == 1 && dst == src) return first_nonfinite(dst, count, dtype);
    const Numbers numbers = numbers_of(dtype);
    return first_in_blocks(dst, count, numbers, [&](std::size_t begin, std::size_t n) {
        const std::size_t offset = begin * numbers.each * numbers.size;
        std::byte* to = static_cast<std::byte*>(dst) + offset;
        const std::byte* from = static_cast<const std::byte*>(src) + offset;
        if (scale != 1) {
            scale_copy(to, from, n, dtype, scale);
            from = std::exchange(to, nullptr);
        }
        return any_nonfinite(to, from, n * numbers.each, numbers.exponent, numbers.size);
    });
}

}  // namespace libddp::cpu
