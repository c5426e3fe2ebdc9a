// 1 bit an element: whether it is positive. The positive ones become their mean, and so do the others.
#include "kernels/cpu/onebit.h"

#include <algorithm>
#include <cstdint>

#include "kernels/codec_arithmetic.h"
#include "kernels/cpu/codec.h"

namespace libddp::cpu {
namespace {

using codec::Levels;
using codec::Sums;

// Of a block, whose bits it writes. Chunks are added up as the elements of a chunk are.
template <class Real>
Sums take_block(const Real* x, std::size_t count, std::uint8_t* bits) {
    if (count <= codec::kSumChunk) return onebit_chunk(x, count, bits);
    Sums lanes[codec::kLanes];
    for (std::size_t begin = 0, chunk = 0; begin < count; begin += codec::kSumChunk, ++chunk)
        lanes[chunk % codec::kLanes] +=
            onebit_chunk(x + begin, std::min<std::size_t>(codec::kSumChunk, count - begin), bits + begin / 8);
    for (std::size_t half = codec::kLanes / 2; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

template <class Real>
class OneBitCodec final : public Codec<Real> {
public:
    explicit OneBitCodec(std::size_t block) : block_(block) {}

    void pack(const Real* x, std::size_t count, std::byte* packed) const override {
        const std::size_t block = codec::block_size(block_, count);
        auto* levels = reinterpret_cast<Levels<Real>*>(packed);
        auto* bits = reinterpret_cast<std::uint8_t*>(levels + codec::divide_up(count, block));
        for (std::size_t begin = 0; begin < count; begin += block) {
            const std::size_t n = std::min(block, count - begin);
            *levels++ = codec::levels_of<Real>(take_block(x + begin, n, bits + begin / 8), n);
        }
    }

    void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n, Real sign,
             Real* to) const override {
        const std::size_t block = codec::block_size(block_, count);
        const auto* levels = reinterpret_cast<const Levels<Real>*>(packed);
        const auto* bits = reinterpret_cast<const std::uint8_t*>(levels + codec::divide_up(count, block));
        for (std::size_t at = begin; at < begin + n;) {
            const std::size_t end = std::min({(at / block + 1) * block, begin + n, count});
            add_block(levels[at / block], bits + at / 8, end - at, sign, to + (at - begin));
            at = end;
        }
    }

private:
    static void add_block(const Levels<Real>& levels, const std::uint8_t* bits, std::size_t n, Real sign, Real* to) {
        const Table table(levels, sign);
        std::size_t i = 0;
        for (; i + 8 <= n; i += 8, ++bits) {
            const Real* low = table.values[*bits & 15];
            const Real* high = table.values[*bits >> 4];
            for (std::size_t k = 0; k < 4; ++k) to[i + k] += low[k];
            for (std::size_t k = 0; k < 4; ++k) to[i + 4 + k] += high[k];
        }
        for (std::size_t k = 0; i + k < n; ++k) to[i + k] += table.values[(*bits >> k) & 1][0];
    }

    // What four bits stand for, so that no element asks for a decision.
    struct Table {
        Table(const Levels<Real>& levels, Real sign) {
            for (unsigned bits = 0; bits < 16; ++bits)
                for (unsigned k = 0; k < 4; ++k)
                    values[bits][k] = sign * ((bits >> k) & 1 ? levels.positive : levels.other);
        }
        Real values[16][4];
    };

    const std::size_t block_;
};

}  // namespace

template <class Real>
std::unique_ptr<const Codec<Real>> onebit_codec(const ddp_codec& codec) {
    return std::make_unique<OneBitCodec<Real>>(codec.block);
}
template std::unique_ptr<const Codec<float>> onebit_codec(const ddp_codec&);
template std::unique_ptr<const Codec<double>> onebit_codec(const ddp_codec&);

}  // namespace libddp::cpu
