// The largest elements of each parameter and where they are.
#include <algorithm>
#include <cstdint>

#include "kernels/codec.h"
#include "kernels/cpu/codec.h"
#include "kernels/cpu/largest.h"

namespace libddp::cpu {
namespace {

template <class Real>
class TopKCodec final : public Codec<Real> {
public:
    explicit TopKCodec(const ddp_codec& codec) : codec_(codec) {}

    void pack(const Real* x, std::size_t count, std::byte* packed) const override {
        const std::size_t k = topk_count(codec_, count);
        auto* values = reinterpret_cast<Real*>(packed);
        auto* places = reinterpret_cast<std::uint32_t*>(values + k);
        Largest(x, count, k).for_each(x, count, [&](std::size_t i) {
            *values++ = x[i];
            *places++ = static_cast<std::uint32_t>(i);
        });
    }

    void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n,
             Real sign, Real* to) const override {
        const std::size_t k = topk_count(codec_, count);
        const auto* values = reinterpret_cast<const Real*>(packed);
        const auto* places = reinterpret_cast<const std::uint32_t*>(values + k);
        const auto* first = std::lower_bound(places, places + k, begin);
        for (auto i = static_cast<std::size_t>(first - places); i < k && places[i] - begin < n; ++i)
            to[places[i] - begin] += sign * values[i];
    }

private:
    const ddp_codec codec_;
};

}  // namespace

template <class Real>
std::unique_ptr<const Codec<Real>> topk_codec(const ddp_codec& codec) {
    return std::make_unique<TopKCodec<Real>>(codec);
}
template std::unique_ptr<const Codec<float>> topk_codec(const ddp_codec&);
template std::unique_ptr<const Codec<double>> topk_codec(const ddp_codec&);

}  // namespace libddp::cpu
