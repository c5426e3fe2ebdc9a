// How a parameter's gradient is written in fewer bytes.
#pragma once

#include <cstddef>

namespace libddp {

// Real is float or double: what a gradient is computed in. Codecs keep nothing: the same numbers give the same bytes, and
// the same bytes the same numbers, whatever the machine.
template <class Real>
class Codec {
public:
    virtual ~Codec() = default;

    // How many bytes `count` elements become, whatever they are. Throws UNSUPPORTED for more than the format can hold.
    virtual std::size_t packed_size(std::size_t count) const = 0;
    // x: `count` elements, at least 1, all finite. packed: packed_size(count) bytes, aligned to 8.
    virtual void pack(const Real* x, std::size_t count, std::byte* packed) const = 0;
    // to[i] += sign * (element begin + i of the `count` in `packed`), for i < n. begin is a multiple of 8.
    virtual void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n, Real sign,
                     Real* to) const = 0;
};

}  // namespace libddp
