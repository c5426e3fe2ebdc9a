// A sum without rounding of numbers that are not negative: the same bits in whichever order, and in
// whichever parts, they are added. So ranks that have parts of a tensor get the norm that one rank
// with all of it gets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ddp/types.h"

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

}  // namespace libddp::cpu
