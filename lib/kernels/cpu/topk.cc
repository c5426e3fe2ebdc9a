#include "kernels/cpu/topk.h"

#include <algorithm>
#include <cstdint>

#include "kernels/codec.h"
#include "kernels/cpu/largest.h"

namespace libddp::cpu {

template <class Real>
void pack_topk(const ddp_codec& codec, const Real* x, std::size_t count, std::byte* packed) {
    const std::size_t k = topk_count(codec, count);
    auto* values = reinterpret_cast<Real*>(packed);
    auto* places = reinterpret_cast<std::uint32_t*>(values + k);
    Largest(x, count, k).for_each(x, count, [&](std::size_t i) {
        *values++ = x[i];
        *places++ = static_cast<std::uint32_t>(i);
    });
}

template <class Real>
void add_topk(const std::byte* packed, std::size_t kept, std::size_t begin, std::size_t n,
              Real sign, Real* to) {
    const auto* values = reinterpret_cast<const Real*>(packed);
    const auto* places = reinterpret_cast<const std::uint32_t*>(values + kept);
    const auto* first = std::lower_bound(places, places + kept, begin);
    for (auto i = static_cast<std::size_t>(first - places); i < kept && places[i] - begin < n; ++i)
        to[places[i] - begin] += sign * values[i];
}

template void pack_topk(const ddp_codec&, const float*, std::size_t, std::byte*);
template void pack_topk(const ddp_codec&, const double*, std::size_t, std::byte*);
template void add_topk(const std::byte*, std::size_t, std::size_t, std::size_t, float, float*);
template void add_topk(const std::byte*, std::size_t, std::size_t, std::size_t, double, double*);

}  // namespace libddp::cpu
