// The largest elements of a part on the CPU (kernels/codec.h). Real: float or double.
#pragma once

#include <cstddef>

#include "kernels/device_kernels.h"

namespace libddp::cpu {

// x: `count` elements, at least 1, all finite. packed: packed_size(count) bytes, aligned to 8.
template <class Real>
void pack_topk(const ddp_codec& codec, const Real* x, std::size_t count, std::byte* packed);
// to[i] += sign * (element begin + i of a part of which `kept` are in `packed`), for i < n.
template <class Real>
void add_topk(const std::byte* packed, std::size_t kept, std::size_t begin, std::size_t n,
              Real sign, Real* to);

}  // namespace libddp::cpu
