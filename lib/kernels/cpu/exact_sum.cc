#include "kernels/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace libddp::cpu {
namespace {

constexpr int kDigitBits = 32;
constexpr std::int64_t kDigitMask = 0xffffffff;
// An addend changes a digit by less than 2^34.
constexpr std::uint32_t kMostAdded = 1u << 28;

}  // namespace

void ExactSum::add_squares(const void* numbers, std::size_t count, ddp_dtype dtype) {
    if (dtype == DDP_F64) return add_squares_of(static_cast<const double*>(numbers), count);
    add_squares_of(static_cast<const float*>(numbers), count);
}

template <class T>
void ExactSum::add_squares_of(const T* numbers, std::size_t count) {
    for (std::size_t i = 0; i < count; i += kUnit) {
        double squares[kUnit] = {};
        for (std::size_t k = 0; k < std::min(kUnit, count - i); ++k) {
            const auto number = static_cast<double>(numbers[i + k]);
            squares[k] = number * number;
        }
        add(((squares[0] + squares[1]) + (squares[2] + squares[3])) +
            ((squares[4] + squares[5]) + (squares[6] + squares[7])));
    }
}

void ExactSum::add(double number) {
    const Addend addend = addend_of(std::bit_cast<std::uint64_t>(number));
    if (addend.first == kNonfinite) {
        ++digits_[kNonfinite];
        return;
    }
    for (std::size_t i = 0; i < 3; ++i)
        digits_[addend.first + i] += static_cast<std::int64_t>(addend.digits[i]);
    if (++added_ == kMostAdded) carry();
}

void ExactSum::carry() {
    for (std::size_t i = 0; i + 1 < kNonfinite; ++i) {
        digits_[i + 1] += digits_[i] >> kDigitBits;
        digits_[i] &= kDigitMask;
    }
    added_ = 0;
}

const ExactSum::Digits& ExactSum::digits() {
    carry();
    return digits_;
}

double ExactSum::value() {
    if (digits_[kNonfinite] != 0) return std::numeric_limits<double>::quiet_NaN();
    carry();
    double sum = 0;
    for (std::size_t i = kNonfinite; i-- > 0;)
        sum += std::ldexp(static_cast<double>(digits_[i]), static_cast<int>(i) * kDigitBits - 1075);
    return sum;
}

}  // namespace libddp::cpu
