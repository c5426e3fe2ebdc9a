// Blocks of 1 bit an element for the kernels of codec_eight_bits.h.
#pragma once

#include "kernels/cuda/codec_eight_bits.h"

namespace libddp::cuda {

struct SumLanes {
    LIBDDP_EVERYWHERE void operator()(std::uint32_t lane, std::uint32_t from) {
        positive[lane] += positive[from];
        other[lane] += other[from];
        positives[lane] += positives[from];
        infinite[lane] |= infinite[from];
    }

    double positive[kLanes], other[kLanes];
    std::uint64_t positives[kLanes];
    std::uint8_t infinite[kLanes];
};

template <class Number>
struct OneBitCoder {
    using Real = Number;
    using Levels = codec::Levels<Real>;
    struct Shared {
        SumLanes lanes;
        alignas(8) std::uint8_t positive[codec::kMostOneBitBlock];
    };

    // As EightBitsCoder's.
    template <class Threads, class Numbers>
    static LIBDDP_COOPERATIVE bool pack(const Threads& threads, Shared& shared,
                                        const EightBitsTable& table,
                                        const EightBitsBlock<Real>& block, const Numbers& x) {
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size())
            add_up(shared, lane, block.count, x);
        threads.sync();
        unsigned char* const to = table.sent + block.packed;
        write_bits(threads, shared, block.count, to + sizeof(Levels));
        fold_lanes(threads,
                   [&](std::uint32_t lane, std::uint32_t other) { shared.lanes(lane, other); });
        const bool finite = shared.lanes.infinite[0] == 0;
        if (!finite) {
            for (std::uint32_t i = threads.index(); 8 * i < block.count; i += threads.size())
                to[sizeof(Levels) + i] = 0;
            if (threads.index() == 0) spoil(to);
        } else if (threads.index() == 0) {
            *reinterpret_cast<Levels*>(to) = codec::levels_of<Real>(
                {shared.lanes.positive[0], shared.lanes.other[0], shared.lanes.positives[0]},
                block.count);
        }
        return finite;
    }
    static LIBDDP_EVERYWHERE Real value(const EightBitsTable&, const unsigned char* block,
                                        std::uint32_t i) {
        const Levels levels = *reinterpret_cast<const Levels*>(block);
        return (block[sizeof levels + i / 8] >> (i % 8)) & 1 ? levels.positive : levels.other;
    }
    static LIBDDP_EVERYWHERE void spoil(unsigned char* block) {
        *reinterpret_cast<Levels*>(block) = {quiet_nan<Real>(), quiet_nan<Real>()};
    }

private:
    static_assert(codec::kMostOneBitBlock == 8 * kLanes, "a byte for each lane");

    template <class Numbers>
    static LIBDDP_COOPERATIVE void add_up(Shared& shared, std::uint32_t lane, std::uint32_t count,
                                          const Numbers& x) {
        double positive = 0, other = 0;
        bool finite = true;
        for (std::uint32_t i = lane; i < codec::kMostOneBitBlock; i += kLanes) {
            const Real value = i < count ? x(i) : Real{0};
            const bool above = value > 0;
            shared.positive[i] = above ? 1 : 0;
            positive += above ? static_cast<double>(value) : 0;
            other += above ? 0 : static_cast<double>(value);
            finite = finite && codec::is_finite(value);
        }
        shared.lanes.positive[lane] = positive;
        shared.lanes.other[lane] = other;
        shared.lanes.infinite[lane] = finite ? 0 : 1;
    }

    template <class Threads>
    static LIBDDP_COOPERATIVE void write_bits(const Threads& threads, Shared& shared,
                                              std::uint32_t count, unsigned char* bits) {
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
            const auto word = load_word<std::uint64_t>(shared.positive + 8 * lane);
            // Puts the lowest bits of the word's bytes together.
            const auto byte = static_cast<std::uint8_t>((word * 0x0102040810204080u) >> 56);
            std::uint32_t ones = 0;
            for (std::uint32_t bit = byte; bit != 0; bit &= bit - 1) ++ones;
            shared.lanes.positives[lane] = ones;
            if (8 * lane < count) bits[lane] = byte;
        }
    }
};

}  // namespace libddp::cuda
