// Gradients in fewer bytes: what each codec is, and the CPU's functions. The
// functions of a device are in device_kernels.h; all write the same bytes, and come from the same
// bytes to the same numbers.
//
// Gradients of f64 are computed in f64, all others in f32 ("Real" here). What a rank sends begins
// with a byte for each part, not 0 if the part holds a NaN or an infinity on this rank. The parts
// follow, each at a place that is aligned to 8:
//
//     quantize  for each block {half its range, the code of 0} in Real; then a byte an element
//     1-bit     for each block {the mean of its positive elements, of the others} in Real; then a
//               bit for each element, the first one's lowest
//     top-k     k values in Real; then their places in 32 bits, ascending
//
// Numbers of 8 bits have no such bytes. The message is a list of blocks, so that it can be cut
// between any two, and each says itself that it is not finite. Where a rank found an element of a
// parameter not finite, all its blocks of the parameter say so.
//
//     8 bits    for each block its largest magnitude in Real, or NaN; then a byte an element, and up
//               to sizeof(Real) - 1 bytes
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_kernels.h"

namespace libddp {

// How many bytes a part of `count` elements, at least 1, becomes, whatever they are. Throws
// UNSUPPORTED for more than the format can hold.
std::size_t packed_size(const ddp_codec& codec, ddp_dtype gradient, std::size_t count);
// Messages, and parts in those of hooks that gather, are aligned to 8.
constexpr std::size_t align_packed(std::size_t bytes) {
    return (bytes + 7) / 8 * 8;
}
// Whether it is of numbers of 8 bits, whose message can be cut into shares.
bool has_shares(const ddp_codec& codec);
// How many elements of a part top-k sends: the share, rounded up. A product that is a whole number
// but for rounding counts as that.
std::size_t topk_count(const ddp_codec& codec, std::size_t count);

namespace cpu {

// As those of device_kernels.h, for memory of the CPU. Rounding is to nearest, and subnormal
// numbers are numbers, whatever the calling thread has chosen.
std::size_t encode_scratch(const ddp_codec_batch& batch);
void encode(const ddp_codec_batch& batch);
void decode(const ddp_codec_batch& batch, double scale);
void recode(const ddp_codec_batch& batch, double scale);

}  // namespace cpu
}  // namespace libddp
