// Numbers of 8 bits in blocks on the CPU (kernels/eight_bits.h).
#pragma once

#include <cstddef>

#include "kernels/device_kernels.h"
#include "kernels/eight_bits.h"

namespace libddp::cpu::eight_bits {

// A format, and how its numbers are rounded.
struct Rounding {
    ddp_codec_kind kind;
    bool stochastic;
    libddp::eight_bits::Draws draws;  // stochastic only
};

// Writes a block of n elements, at most kMostBlock, aligned to Real. False: they are not all finite,
// and the block is NaN. For float and double.
template <class Real>
bool pack(const Rounding& rounding, const Real* x, std::size_t n, std::byte* block);

// to[i] += sign * element i of a block, NaN if the block is.
template <class Real>
void add(ddp_codec_kind kind, const std::byte* block, std::size_t n, Real sign, Real* to);

// Batches of device_kernels.h, with these formats.
void encode(const ddp_codec_batch& batch);
void decode(const ddp_codec_batch& batch, double scale);
void recode(const ddp_codec_batch& batch, double scale);

}  // namespace libddp::cpu::eight_bits
