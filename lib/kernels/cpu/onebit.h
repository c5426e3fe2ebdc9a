// The work of the 1-bit codec on the elements of a chunk (codec_arithmetic.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/codec_arithmetic.h"

namespace libddp::cpu {

// Adds up n elements, at most codec::kSumChunk, and writes their bits.
codec::Sums onebit_chunk(const float* x, std::size_t n, std::uint8_t* bits);
codec::Sums onebit_chunk(const double* x, std::size_t n, std::uint8_t* bits);

}  // namespace libddp::cpu
