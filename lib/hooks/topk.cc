// The largest elements of each parameter and where they are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hooks/gather.h"
#include "hooks/largest.h"
#include "hooks/options.h"
#include "util/error.h"

namespace libddp {
namespace {

// Packed: the values, then their places in ascending order.
template <class Real>
class TopKCodec final : public Codec<Real> {
public:
    explicit TopKCodec(double ratio) : ratio_(ratio) {}

    std::size_t packed_size(std::size_t count) const override {
        if (count - 1 > std::numeric_limits<std::uint32_t>::max())
            fail(DDP_ERROR_UNSUPPORTED, "topk: a parameter has ", count,
                 " elements; places are written in 32 bits, which is enough for 4,294,967,296");
        return kept(count) * (sizeof(Real) + sizeof(std::uint32_t));
    }

    void pack(const Real* x, std::size_t count, std::byte* packed) const override {
        const std::size_t k = kept(count);
        auto* values = reinterpret_cast<Real*>(packed);
        auto* places = reinterpret_cast<std::uint32_t*>(values + k);
        Largest(x, count, k).for_each(x, count, [&](std::size_t i) {
            *values++ = x[i];
            *places++ = static_cast<std::uint32_t>(i);
        });
    }

    void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n, Real sign,
             Real* to) const override {
        const std::size_t k = kept(count);
        const auto* values = reinterpret_cast<const Real*>(packed);
        const auto* places = reinterpret_cast<const std::uint32_t*>(values + k);
        const auto* first = std::lower_bound(places, places + k, begin);
        for (auto i = static_cast<std::size_t>(first - places); i < k && places[i] - begin < n; ++i)
            to[places[i] - begin] += sign * values[i];
    }

private:
    // The share, rounded up. A product that is a whole number but for rounding counts as that.
    std::size_t kept(std::size_t count) const {
        const double share = ratio_ * static_cast<double>(count), whole = std::round(share);
        const double k = std::fabs(share - whole) <= 1e-9 * share ? whole : std::ceil(share);
        return std::clamp(static_cast<std::size_t>(k), std::size_t{1}, count);
    }

    const double ratio_;
};

}  // namespace

ddp_topk_options topk_defaults() {
    return {sizeof(ddp_topk_options), 0.01, 1024};
}

HookPtr make_topk(const ddp_topk_options& options, const char* call) {
    if (!(options.ratio > 0 && options.ratio <= 1))
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": ratio is ", options.ratio,
             "; it must be above 0 and at most 1: the share of each parameter's elements that is sent");
    require_min_elements(options.min_elements, call);
    GatherHook::Setup setup;
    setup.name = "topk";
    setup.options = str("ratio=", options.ratio, ",min_elements=", options.min_elements);
    setup.min_elements = options.min_elements;
    setup.feedback = true;
    setup.narrow = std::make_unique<TopKCodec<float>>(options.ratio);
    setup.wide = std::make_unique<TopKCodec<double>>(options.ratio);
    return std::make_shared<GatherHook>(std::move(setup));
}

}  // namespace libddp
