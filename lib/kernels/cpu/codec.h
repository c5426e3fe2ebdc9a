// How a part is written in fewer bytes on the CPU.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/device_kernels.h"

namespace libddp::cpu {

// Real is float or double: what a gradient is computed in. Codecs keep nothing: the same numbers
// give the same bytes, and the same bytes the same numbers, whatever the machine.
template <class Real>
class Codec {
public:
    virtual ~Codec() = default;

    // x: `count` elements, at least 1, all finite. packed: packed_size(count) bytes, aligned to 8.
    virtual void pack(const Real* x, std::size_t count, std::byte* packed) const = 0;
    // to[i] += sign * (element begin + i of the `count` in `packed`), for i < n. begin is a
    // multiple of 8.
    virtual void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n,
                     Real sign, Real* to) const = 0;
};

// For float and double.
template <class Real>
std::unique_ptr<const Codec<Real>> quantize_codec(const ddp_codec& codec);
template <class Real>
std::unique_ptr<const Codec<Real>> onebit_codec(const ddp_codec& codec);
template <class Real>
std::unique_ptr<const Codec<Real>> topk_codec(const ddp_codec& codec);

}  // namespace libddp::cpu
