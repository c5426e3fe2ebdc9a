// Blocks of 1 bit an element on the CPU (codec_arithmetic.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec_arithmetic.h"

namespace libddp::cpu {

// Adds up n elements, at most codec::kMostOneBitBlock, and writes their bits.
codec::Sums onebit_sums(const float* x, std::size_t n, std::uint8_t* bits);
codec::Sums onebit_sums(const double* x, std::size_t n, std::uint8_t* bits);

// As pack() and add() of eight_bits.h, for float and double.
template <class Real>
bool pack_onebit(const Real* x, std::size_t n, std::byte* block);
template <class Real>
void add_onebit(const std::byte* block, std::size_t n, Real sign, Real* to);

}  // namespace libddp::cpu
