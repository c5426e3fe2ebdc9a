// A sum without rounding of numbers that are not negative: the same bits in whichever order, and in
// whichever parts, they are added. So ranks that have parts of a tensor get the norm that one rank
// with all of it gets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ddp/types.h"
#include "kernels/everywhere.h"

namespace libddp::cpu {

class ExactSum {
public:
    // Squares of f32 or f64 numbers. They are added in f64 by kUnit, so a tensor may be cut after
    // multiples of kUnit only.
    static constexpr std::size_t kUnit = 8;
    void add_squares(const void* numbers, std::size_t count, ddp_dtype dtype);
    void add(double number);

    // Its digits, in base 2^32, and how many numbers were not finite. Those of several sums may be
    // added: of fewer than 2^31.
    static constexpr std::size_t kDigits = 67;
    using Digits = std::array<std::int64_t, kDigits>;
    const Digits& digits();

    // The addition of a number, from the bits of an f64: what three digits from `first` on get.
    struct Addend {
        std::uint64_t digits[3];
        std::uint32_t first;
    };
    static LIBDDP_EVERYWHERE Addend addend_of(std::uint64_t bits);

    void set_digits(const Digits& digits) { digits_ = digits; }

    // Rounded. NaN if a number was not finite.
    double value();

private:
    static constexpr std::size_t kNonfinite = kDigits - 1;

    template <class T>
    void add_squares_of(const T* numbers, std::size_t count);
    void carry();

    Digits digits_{};
    std::uint32_t added_ = 0;  // since digits were last carried
};

// The number is mantissa * 2^(exponent - 1075). One that is not finite is counted.
LIBDDP_EVERYWHERE ExactSum::Addend ExactSum::addend_of(std::uint64_t bits) {
    constexpr std::uint64_t kMask = 0xffffffff;
    std::uint64_t exponent = bits >> 52 & 0x7ff, mantissa = bits & ((1ull << 52) - 1);
    if (exponent == 0x7ff) return {{1, 0, 0}, kNonfinite};
    if (exponent == 0)
        exponent = 1;
    else
        mantissa |= 1ull << 52;
    const std::uint64_t shift = exponent % 32;
    const std::uint64_t low = (mantissa & kMask) << shift, high = mantissa >> 32 << shift;
    return {{low & kMask, (low >> 32) + (high & kMask), high >> 32},
            static_cast<std::uint32_t>(exponent / 32)};
}

}  // namespace libddp::cpu
