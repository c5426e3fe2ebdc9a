// 1 bit an element: whether it is positive. The positive ones become their mean, and so do the others.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "hooks/gather.h"
#include "hooks/options.h"
#include "util/error.h"

namespace libddp {
namespace {

// Packed: the levels of each block, then the bits of all, the first element's lowest.
template <class Real>
class OneBitCodec final : public Codec<Real> {
public:
    // block: elements that share levels, a multiple of 8; 0: all.
    explicit OneBitCodec(std::size_t block) : block_(block) {}

    std::size_t packed_size(std::size_t count) const override { return levels_size(count) + (count + 7) / 8; }

    void pack(const Real* x, std::size_t count, std::byte* packed) const override {
        auto* levels = reinterpret_cast<Levels*>(packed);
        for (std::size_t begin = 0, block = block_of(count); begin < count; begin += block)
            *levels++ = levels_of(x + begin, std::min(block, count - begin));
        auto* bits = reinterpret_cast<std::uint8_t*>(packed + levels_size(count));
        std::size_t i = 0;
        for (; i + 8 <= count; i += 8) *bits++ = byte_of(x + i, 8);
        if (i < count) *bits = byte_of(x + i, count - i);
    }

    void add(const std::byte* packed, std::size_t count, std::size_t begin, std::size_t n, Real sign,
             Real* to) const override {
        const auto* levels = reinterpret_cast<const Levels*>(packed);
        const auto* bits = reinterpret_cast<const std::uint8_t*>(packed + levels_size(count));
        const std::size_t block = block_of(count);
        for (std::size_t at = begin; at < begin + n;) {
            const std::size_t end = std::min({(at / block + 1) * block, begin + n, count});
            add_block(levels[at / block], bits + at / 8, end - at, sign, to + (at - begin));
            at = end;
        }
    }

private:
    struct Levels {
        Real positive, other;
    };

    std::size_t block_of(std::size_t count) const { return block_ == 0 ? count : block_; }
    std::size_t levels_size(std::size_t count) const {
        const std::size_t block = block_of(count);
        return (count + block - 1) / block * sizeof(Levels);
    }

    static void add_block(const Levels& levels, const std::uint8_t* bits, std::size_t n, Real sign, Real* to) {
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
        Table(const Levels& levels, Real sign) {
            for (unsigned bits = 0; bits < 16; ++bits)
                for (unsigned k = 0; k < 4; ++k)
                    values[bits][k] = sign * ((bits >> k) & 1 ? levels.positive : levels.other);
        }
        Real values[16][4];
    };

    static std::uint8_t byte_of(const Real* x, std::size_t n) {
        unsigned byte = 0;
        for (std::size_t k = 0; k < n; ++k) byte |= static_cast<unsigned>(x[k] > 0) << k;
        return static_cast<std::uint8_t>(byte);
    }

    // In double, so that the mean of many f32 is right; in lanes and without decisions, so that the compiler can use
    // vectors. |v| + v is 2v for a positive v and 0 for any other.
    static Levels levels_of(const Real* x, std::size_t count) {
        constexpr std::size_t kLanes = 4;
        double positive[kLanes]{}, other[kLanes]{};
        auto take = [&](std::size_t lane, double v) {
            positive[lane] += std::fabs(v) + v;
            other[lane] += v - std::fabs(v);
        };
        std::size_t i = 0;
        for (; i + kLanes <= count; i += kLanes)
            for (std::size_t lane = 0; lane < kLanes; ++lane) take(lane, static_cast<double>(x[i + lane]));
        for (; i < count; ++i) take(0, static_cast<double>(x[i]));
        const auto positives = std::count_if(x, x + count, [](Real v) { return v > 0; });
        return {half_mean(positive, static_cast<double>(positives)),
                half_mean(other, static_cast<double>(count) - static_cast<double>(positives))};
    }

    // Finite, although a sum of f64 may overflow.
    template <std::size_t lanes>
    static Real half_mean(const double (&sums)[lanes], double n) {
        constexpr double most = std::numeric_limits<Real>::max();
        const double sum = std::accumulate(sums, sums + lanes, 0.0);
        return n == 0 ? Real{0} : static_cast<Real>(std::clamp(sum / 2 / n, -most, most));
    }

    const std::size_t block_;
};

}  // namespace

ddp_onebit_options onebit_defaults() {
    return {sizeof(ddp_onebit_options), 1024, 512};
}

HookPtr make_onebit(const ddp_onebit_options& options, const char* call) {
    require_min_elements(options.min_elements, call);
    if (options.block < 0 || options.block % 8 != 0)
        fail(DDP_ERROR_INVALID_ARGUMENT, call, ": block is ", options.block,
             "; it must be a multiple of 8, or 0 for all of a parameter");
    GatherHook::Setup setup;
    setup.name = "onebit";
    setup.options = str("block=", options.block, ",min_elements=", options.min_elements);
    setup.min_elements = options.min_elements;
    setup.feedback = true;
    const auto block = static_cast<std::size_t>(options.block);
    setup.narrow = std::make_unique<OneBitCodec<float>>(block);
    setup.wide = std::make_unique<OneBitCodec<double>>(block);
    return std::make_shared<GatherHook>(std::move(setup));
}

}  // namespace libddp
