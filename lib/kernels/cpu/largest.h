// The largest numbers by magnitude.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/codec_arithmetic.h"

namespace libddp::cpu {

// Which of a list of finite numbers are among the k largest by magnitude: all above a bound, and of
// those at the bound as many of the first as there is room for. So equal numbers go by their place,
// and the answer is one and the same everywhere.
template <class Real>
class Largest {
public:
    // 1 <= k <= count.
    Largest(const Real* x, std::size_t count, std::size_t k) : at_bound_(k) {
        for (int left = codec::kMagnitudeBits<Real>; left > 0;) {
            const int digit = std::min(left, codec::kDigit);
            left -= digit;
            narrow(x, count, left, digit);
        }
    }

    // Calls take(index) for each, in ascending order.
    template <class Take>
    void for_each(const Real* x, std::size_t count, Take take) const {
        std::size_t room = at_bound_;
        for (std::size_t i = 0; i < count; ++i) {
            const Bits bits = codec::magnitude(x[i]);
            if (bits < bound_) continue;
            if (bits == bound_) {
                if (room == 0) continue;
                --room;
            }
            take(i);
        }
    }

private:
    using Bits = codec::Bits<Real>;

    // Finds the next digit of the bound, `digit` bits above the lowest `left`, from how many of the
    // numbers that begin as the bound does have which digit there.
    void narrow(const Real* x, std::size_t count, int left, int digit) {
        std::array<std::size_t, codec::kDigitValues> counts{};  // fit into the L1 cache
        const Bits mask = (Bits{1} << digit) - 1;
        for (std::size_t i = 0; i < count; ++i) {
            const Bits bits = codec::magnitude(x[i]) >> left;
            if (bits >> digit == bound_ >> (left + digit)) ++counts[bits & mask];
        }
        Bits value = mask;
        for (; counts[value] < at_bound_; --value) at_bound_ -= counts[value];
        bound_ |= value << left;
    }

    Bits bound_ = 0;
    std::size_t at_bound_;  // how many of those at the bound are taken
};

}  // namespace libddp::cpu
