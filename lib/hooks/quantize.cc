// 8 bits an element: a block's numbers become multiples of a step, counted from a code that stands for zero.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "hooks/gather.h"
#include "hooks/options.h"
#include "util/error.h"

namespace libddp {
namespace {

// Adding and subtracting this rounds to the nearest integer, without an instruction that not every machine has.
template <class Real>
constexpr Real kRound = Real{1.5} / std::numeric_limits<Real>::epsilon();

// A step is 2/255 of half the range, which, unlike the range, does not overflow.
template <class Real>
constexpr Real kStep = Real{2} / Real{255};
// So that the ends of a range that begins or ends at 0 are met exactly.
static_assert(255 * kStep<float> == 2 && 255 * kStep<double> == 2);

template <class Real>
struct Range {
    Real low, high;
};

// Of the elements and 0. In lanes, for which the compiler can use vectors.
template <class Real>
Range<Real> range_of(const Real* x, std::size_t count) {
    constexpr std::size_t kLanes = 16;
    Real low[kLanes]{}, high[kLanes]{};
    auto widen = [&](std::size_t lane, Real value) {
        low[lane] = value < low[lane] ? value : low[lane];
        high[lane] = value > high[lane] ? value : high[lane];
    };
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (std::size_t lane = 0; lane < kLanes; ++lane) widen(lane, x[i + lane]);
    for (; i < count; ++i) widen(0, x[i]);
    return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

// Packed: the scales of all blocks, then a byte for each element.
template <class Real>
class QuantizeCodec final : public Codec<Real> {
public:
    // block 0: all elements are one.
    explicit QuantizeCodec(std::size_t block) : block_(block) {}

    std::size_t packed_size(std::size_t count) const override { return blocks(count) * sizeof(Scale) + count; }

    void pack(const Real* x, std::size_t count, std::byte* packed) const override {
        auto* scales = reinterpret_cast<Scale*>(packed);
        auto* codes = reinterpret_cast<std::uint8_t*>(scales + blocks(count));
        const std::size_t block = block_of(count);
        for (std::size_t begin = 0; begin < count; begin += block) {
            const std::size_t n = std::min(block, count - begin);
            *scales = scale_of(range_of(x + begin, n));
            encode(x + begin, n, *scales++, codes + begin);
        }
    }

    void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n, Real sign,
             Real* to) const override {
        const auto* scales = reinterpret_cast<const Scale*>(packed);
        const auto* codes = reinterpret_cast<const std::uint8_t*>(scales + blocks(count)) + begin;
        const std::size_t block = block_of(count);
        for (std::size_t done = 0; done < n;) {
            const std::size_t at = (begin + done) / block;
            const std::size_t here = std::min(n, (at + 1) * block - begin) - done;
            const Scale scale = scales[at];
            const Real half = sign * scale.half;
            for (std::size_t i = done; i < done + here; ++i)
                to[i] += (static_cast<Real>(codes[i]) - scale.zero) * kStep<Real> * half;
            done += here;
        }
    }

private:
    struct Scale {
        Real half;  // of the range
        Real zero;  // the code that stands for 0: an integer
    };

    std::size_t block_of(std::size_t count) const { return block_ == 0 ? count : std::min(block_, count); }
    std::size_t blocks(std::size_t count) const { return (count + block_of(count) - 1) / block_of(count); }

    static Real rounded(Real x) { return (x + kRound<Real>)-kRound<Real>; }
    // From an element to steps. Division first: a quotient by `half` would overflow for the smallest ranges.
    static Real steps(Real x, Real half) { return x / half * (Real{255} / 2); }

    static Scale scale_of(Range<Real> range) {
        const Real half = range.high / 2 - range.low / 2;
        if (!(half > 0)) return {0, 0};
        return {half, rounded(steps(-range.low, half))};
    }

    static void encode(const Real* x, std::size_t n, Scale scale, std::uint8_t* codes) {
        if (scale.half == 0) {
            std::fill_n(codes, n, std::uint8_t{0});
            return;
        }
        for (std::size_t i = 0; i < n; ++i) {
            Real code = rounded(steps(x[i], scale.half)) + scale.zero;
            code = code > 0 ? code : 0;
            code = code < 255 ? code : 255;
            codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(code));
        }
    }

    const std::size_t block_;
};

}  // namespace

ddp_quantize_options quantize_defaults() {
    return {sizeof(ddp_quantize_options), 0, 0};
}

HookPtr make_quantize(const ddp_quantize_options& options, const char* call) {
    if (options.block < 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": block is ", options.block,
             "; it must be a number of elements, or 0 for all of a parameter");
    require_min_elements(options.min_elements, call);
    GatherHook::Setup setup;
    setup.name = options.block == 0 ? "quantize_per_tensor" : "quantize_per_channel";
    setup.options = str("block=", options.block, ",min_elements=", options.min_elements);
    setup.min_elements = options.min_elements;
    const auto block = static_cast<std::size_t>(options.block);
    setup.narrow = std::make_unique<QuantizeCodec<float>>(block);
    setup.wide = std::make_unique<QuantizeCodec<double>>(block);
    return std::make_shared<GatherHook>(std::move(setup));
}

}  // namespace libddp
