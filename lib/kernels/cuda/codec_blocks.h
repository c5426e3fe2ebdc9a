// Kernels of the codecs that cut a part into blocks, quantize and 1-bit: packing.
//
// A block is cut into chunks of 1,024 elements, and a team takes one. Where a block is a single chunk the team does all of it. Otherwise
// chunks leave what they have found, a second kernel puts that together for each block, and quantization, whose bytes depend on it,
// needs a third.
#pragma once

#include "kernels/cuda/codec_table.h"

namespace libddp::cuda {

struct BlockCut {
    LIBDDP_EVERYWHERE BlockCut(const CodecTable& table, const CodecRow& row)
        : block(codec::block_size(table.block, row.count)),
          blocks(codec::divide_up(row.count, block)),
          chunks(codec::divide_up(block, codec::kSumChunk)) {}

    const std::uint64_t block;   // elements
    const std::uint64_t blocks;  // of the part
    const std::uint64_t chunks;  // of a block
};

// A chunk of a block. The last block's last chunks may be empty.
struct BlockChunk {
    LIBDDP_EVERYWHERE BlockChunk(const CodecTable& table, std::uint64_t chunk)
        : place(table, chunk),
          cut(table, place.row),
          block(place.number / cut.chunks),
          begin(block * cut.block + place.number % cut.chunks * codec::kSumChunk),
          packed(sent_by(table, static_cast<std::uint64_t>(table.rank)) + place.row.packed) {
        const std::uint64_t block_end = (block + 1) * cut.block;
        const std::uint64_t end = block_end < place.row.count ? block_end : place.row.count;
        count = begin >= end                     ? 0
                : end - begin < codec::kSumChunk ? static_cast<std::uint32_t>(end - begin)
                                                 : static_cast<std::uint32_t>(codec::kSumChunk);
    }
    LIBDDP_EVERYWHERE bool alone() const { return cut.chunks == 1; }
    // What follows the blocks' scales or levels.
    template <class Real>
    LIBDDP_EVERYWHERE unsigned char* body() const {
        return packed + cut.blocks * 2 * sizeof(Real);
    }
    LIBDDP_EVERYWHERE std::uint64_t partial() const { return place.row.first_partial + place.number; }

    const ChunkPlace place;
    const BlockCut cut;
    const std::uint64_t block;
    const std::uint64_t begin;
    std::uint32_t count;
    unsigned char* const packed;
};

// A block of several chunks. Its number stands where that of a chunk does.
struct WholeBlock {
    LIBDDP_EVERYWHERE WholeBlock(const CodecTable& table, std::uint64_t number)
        : place(table, number),
          cut(table, place.row),
          begin(place.number * cut.block),
          count(place.row.count - begin < cut.block ? place.row.count - begin : cut.block),
          first_partial(place.row.first_partial + place.number * cut.chunks),
          packed(sent_by(table, static_cast<std::uint64_t>(table.rank)) + place.row.packed) {}

    const ChunkPlace place;
    const BlockCut cut;
    const std::uint64_t begin;
    const std::uint64_t count;
    const std::uint64_t first_partial;
    unsigned char* const packed;
};

template <class Real>
struct Range {
    Real low, high;
};

template <class Real>
struct RangeLanes {
    LIBDDP_EVERYWHERE void operator()(std::uint32_t lane, std::uint32_t other) { widen(lane, range[other]); }
    LIBDDP_EVERYWHERE void widen(std::uint32_t lane, const Range<Real>& by) {
        Range<Real>& own = range[lane];
        own.low = by.low < own.low ? by.low : own.low;
        own.high = by.high > own.high ? by.high : own.high;
    }
    Range<Real> range[kLanes];
};

template <class Format, class Team>
LIBDDP_TEAMWORK void write_codes(const Team& team, const BlockChunk& chunk, const Input<Format>& x,
                                 const codec::Scale<typename Format::Compute>& scale) {
    unsigned char* codes = chunk.template body<typename Format::Compute>() + chunk.begin;
    for (std::uint32_t i = team.rank(); i < chunk.count; i += team.size())
        codes[i] = scale.half == 0 ? std::uint8_t{0} : codec::code_of(x[chunk.begin + i], scale);
}

template <class Format>
struct QuantizeRanges {
    using Real = typename Format::Compute;
    using Shared = RangeLanes<Real>;
    static constexpr int kThreads = kLanes;

    template <class Team>
    static LIBDDP_TEAMWORK void work(const Team& team, Shared& shared, const CodecTable& table, std::uint64_t number) {
        const BlockChunk chunk(table, number);
        const Input<Format> x(chunk.place.row);
        for (std::uint32_t lane = team.rank(); lane < kLanes; lane += team.size()) {
            shared.range[lane] = {0, 0};
            bool finite = true;
            for (std::uint32_t i = lane; i < chunk.count; i += kLanes) {
                const Real value = x[chunk.begin + i];
                shared.widen(lane, {value, value});
                finite = finite && codec::is_finite(value);
            }
            if (!finite) team.mark(sent_by(table, static_cast<std::uint64_t>(table.rank)) + chunk.place.part);
        }
        fold_lanes(team, [&](std::uint32_t lane, std::uint32_t other) { shared(lane, other); });
        if (!chunk.alone()) {
            if (team.rank() == 0) static_cast<Range<Real>*>(table.partials)[chunk.partial()] = shared.range[0];
            return;
        }
        const auto scale = codec::scale_of(shared.range[0].low, shared.range[0].high);
        if (team.rank() == 0) reinterpret_cast<codec::Scale<Real>*>(chunk.packed)[chunk.block] = scale;
        write_codes(team, chunk, x, scale);
    }
};

// For each block of several chunks.
template <class Real>
struct QuantizeScales {
    using Shared = RangeLanes<Real>;
    static constexpr int kThreads = kLanes;

    template <class Team>
    static LIBDDP_TEAMWORK void work(const Team& team, Shared& shared, const CodecTable& table, std::uint64_t number) {
        const WholeBlock block(table, number);
        const Range<Real>* partials = static_cast<const Range<Real>*>(table.partials) + block.first_partial;
        for (std::uint32_t lane = team.rank(); lane < kLanes; lane += team.size()) {
            shared.range[lane] = {0, 0};
            for (std::uint64_t i = lane; i < block.cut.chunks; i += kLanes) shared.widen(lane, partials[i]);
        }
        fold_lanes(team, [&](std::uint32_t lane, std::uint32_t other) { shared(lane, other); });
        if (team.rank() == 0)
            reinterpret_cast<codec::Scale<Real>*>(block.packed)[block.place.number] =
                codec::scale_of(shared.range[0].low, shared.range[0].high);
    }
};

// For each chunk of those blocks.
template <class Format>
struct QuantizeCodes {
    using Real = typename Format::Compute;
    struct Shared {};
    static constexpr int kThreads = kLanes;

    template <class Team>
    static LIBDDP_TEAMWORK void work(const Team& team, Shared&, const CodecTable& table, std::uint64_t number) {
        const BlockChunk chunk(table, number);
        const auto scale = reinterpret_cast<const codec::Scale<Real>*>(chunk.packed)[chunk.block];
        write_codes(team, chunk, Input<Format>(chunk.place.row), scale);
    }
};

struct SumLanes {
    LIBDDP_EVERYWHERE void operator()(std::uint32_t lane, std::uint32_t from) {
        positive[lane] += positive[from];
        other[lane] += other[from];
        positives[lane] += positives[from];
    }
    LIBDDP_EVERYWHERE codec::Sums first() const { return {positive[0], other[0], positives[0]}; }

    double positive[kLanes], other[kLanes];
    std::uint64_t positives[kLanes];
};

template <class Format>
struct OneBitSums {
    using Real = typename Format::Compute;
    struct Shared {
        SumLanes lanes;
        alignas(8) std::uint8_t positive[codec::kSumChunk];
    };
    static constexpr int kThreads = kLanes;

    template <class Team>
    static LIBDDP_TEAMWORK void work(const Team& team, Shared& shared, const CodecTable& table, std::uint64_t number) {
        const BlockChunk chunk(table, number);
        const Input<Format> x(chunk.place.row);
        for (std::uint32_t lane = team.rank(); lane < kLanes; lane += team.size()) {
            double positive = 0, other = 0;
            bool finite = true;
            for (std::uint32_t i = lane; i < codec::kSumChunk; i += kLanes) {
                const Real value = i < chunk.count ? x[chunk.begin + i] : Real{0};
                const bool above = value > 0;
                shared.positive[i] = above ? 1 : 0;
                positive += above ? static_cast<double>(value) : 0;
                other += above ? 0 : static_cast<double>(value);
                finite = finite && codec::is_finite(value);
            }
            shared.lanes.positive[lane] = positive;
            shared.lanes.other[lane] = other;
            if (!finite) team.mark(sent_by(table, static_cast<std::uint64_t>(table.rank)) + chunk.place.part);
        }
        team.sync();
        write_bits(team, shared, chunk);
        fold_lanes(team, [&](std::uint32_t lane, std::uint32_t other) { shared.lanes(lane, other); });
        if (team.rank() != 0) return;
        if (chunk.alone())
            reinterpret_cast<codec::Levels<Real>*>(chunk.packed)[chunk.block] =
                codec::levels_of<Real>(shared.lanes.first(), chunk.count);
        else
            static_cast<codec::Sums*>(table.partials)[chunk.partial()] = shared.lanes.first();
    }

private:
    static_assert(codec::kSumChunk == 8 * kLanes, "a byte for each lane");

    template <class Team>
    static LIBDDP_TEAMWORK void write_bits(const Team& team, Shared& shared, const BlockChunk& chunk) {
        unsigned char* bits = chunk.template body<Real>() + chunk.begin / 8;
        for (std::uint32_t lane = team.rank(); lane < kLanes; lane += team.size()) {
            const auto word = load_word<std::uint64_t>(shared.positive + 8 * lane);
            // Puts the lowest bits of the word's bytes together.
            const auto byte = static_cast<std::uint8_t>((word * 0x0102040810204080u) >> 56);
            std::uint32_t count = 0;
            for (std::uint32_t bit = byte; bit != 0; bit &= bit - 1) ++count;
            shared.lanes.positives[lane] = count;
            if (8 * lane < chunk.count) bits[lane] = byte;
        }
    }
};

// For each block of several chunks.
template <class Real>
struct OneBitLevels {
    using Shared = SumLanes;
    static constexpr int kThreads = kLanes;

    template <class Team>
    static LIBDDP_TEAMWORK void work(const Team& team, Shared& shared, const CodecTable& table, std::uint64_t number) {
        const WholeBlock block(table, number);
        const codec::Sums* partials = static_cast<const codec::Sums*>(table.partials) + block.first_partial;
        for (std::uint32_t lane = team.rank(); lane < kLanes; lane += team.size()) {
            codec::Sums sums;
            for (std::uint64_t i = lane; i < block.cut.chunks; i += kLanes) sums += partials[i];
            shared.positive[lane] = sums.positive;
            shared.other[lane] = sums.other;
            shared.positives[lane] = sums.positives;
        }
        fold_lanes(team, [&](std::uint32_t lane, std::uint32_t other) { shared(lane, other); });
        if (team.rank() == 0)
            reinterpret_cast<codec::Levels<Real>*>(block.packed)[block.place.number] =
                codec::levels_of<Real>(shared.first(), block.count);
    }
};

}  // namespace libddp::cuda
