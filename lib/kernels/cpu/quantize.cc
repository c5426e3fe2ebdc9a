// 8 bits an element: a block's numbers become multiples of a step, counted from a code that stands
// for zero.
#include <algorithm>
#include <cstdint>

#include "kernels/codec_arithmetic.h"
#include "kernels/cpu/codec.h"

namespace libddp::cpu {
namespace {

using codec::Scale;

// The bounds of the elements and 0. In lanes, for which the compiler can use vectors.
template <class Real>
Scale<Real> scale_of_block(const Real* x, std::size_t count) {
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
    return codec::scale_of(*std::min_element(low, low + kLanes),
                           *std::max_element(high, high + kLanes));
}

template <class Real>
class QuantizeCodec final : public Codec<Real> {
public:
    explicit QuantizeCodec(std::size_t block) : block_(block) {}

    void pack(const Real* x, std::size_t count, std::byte* packed) const override {
        const std::size_t block = codec::block_size(block_, count);
        auto* scales = reinterpret_cast<Scale<Real>*>(packed);
        auto* codes = reinterpret_cast<std::uint8_t*>(scales + codec::divide_up(count, block));
        for (std::size_t begin = 0; begin < count; begin += block) {
            const std::size_t n = std::min(block, count - begin);
            *scales = scale_of_block(x + begin, n);
            encode(x + begin, n, *scales++, codes + begin);
        }
    }

    void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n,
             Real sign, Real* to) const override {
        const std::size_t block = codec::block_size(block_, count);
        const auto* scales = reinterpret_cast<const Scale<Real>*>(packed);
        const auto* codes =
            reinterpret_cast<const std::uint8_t*>(scales + codec::divide_up(count, block)) + begin;
        for (std::size_t done = 0; done < n;) {
            const std::size_t at = (begin + done) / block;
            const std::size_t here = std::min(n, (at + 1) * block - begin) - done;
            const Scale<Real> scale{sign * scales[at].half, scales[at].zero};
            for (std::size_t i = done; i < done + here; ++i)
                to[i] += codec::value_of(codes[i], scale);
            done += here;
        }
    }

private:
    static void encode(const Real* x, std::size_t n, Scale<Real> scale, std::uint8_t* codes) {
        if (scale.half == 0) {
            std::fill_n(codes, n, std::uint8_t{0});
            return;
        }
        for (std::size_t i = 0; i < n; ++i) codes[i] = codec::code_of(x[i], scale);
    }

    const std::size_t block_;
};

}  // namespace

template <class Real>
std::unique_ptr<const Codec<Real>> quantize_codec(const ddp_codec& codec) {
    return std::make_unique<QuantizeCodec<Real>>(codec.block);
}
template std::unique_ptr<const Codec<float>> quantize_codec(const ddp_codec&);
template std::unique_ptr<const Codec<double>> quantize_codec(const ddp_codec&);

}  // namespace libddp::cpu
