// Kernels of the codecs that cut a part into blocks, quantize and 1-bit.
//
// Packing: a block is cut into chunks of 1,024 elements, and cooperating threads take one. Where a
// block is a single chunk they do all of it. Otherwise chunks leave what they have found, a second
// kernel puts that together for each block, and quantization, whose bytes depend on it, needs a
// third.
//
// Unpacking: one kernel adds up what all ranks have packed, in the order of the ranks. A thread
// takes 8 elements of one part, which lie in one byte, or word, of every rank.
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
    // The bytes after the blocks' scales or levels.
    template <class Real>
    LIBDDP_EVERYWHERE unsigned char* body() const {
        return packed + cut.blocks * 2 * sizeof(Real);
    }
    LIBDDP_EVERYWHERE std::uint64_t partial() const {
        return place.row.first_partial + place.number;
    }

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
    LIBDDP_EVERYWHERE void operator()(std::uint32_t lane, std::uint32_t other) {
        widen(lane, range[other]);
    }
    LIBDDP_EVERYWHERE void widen(std::uint32_t lane, const Range<Real>& by) {
        Range<Real>& own = range[lane];
        own.low = by.low < own.low ? by.low : own.low;
        own.high = by.high > own.high ? by.high : own.high;
    }
    Range<Real> range[kLanes];
};

template <class Format, class Threads>
LIBDDP_COOPERATIVE void write_codes(const Threads& threads, const BlockChunk& chunk,
                                    const Input<Format>& x,
                                    const codec::Scale<typename Format::Compute>& scale) {
    unsigned char* codes = chunk.template body<typename Format::Compute>() + chunk.begin;
    for (std::uint32_t i = threads.index(); i < chunk.count; i += threads.size())
        codes[i] = scale.half == 0 ? std::uint8_t{0} : codec::code_of(x[chunk.begin + i], scale);
}

template <class Format>
struct QuantizeRanges {
    using Real = typename Format::Compute;
    using Shared = RangeLanes<Real>;
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const BlockChunk chunk(table, number);
        const Input<Format> x(chunk.place.row);
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
            shared.range[lane] = {0, 0};
            bool finite = true;
            for (std::uint32_t i = lane; i < chunk.count; i += kLanes) {
                const Real value = x[chunk.begin + i];
                shared.widen(lane, {value, value});
                finite = finite && codec::is_finite(value);
            }
            if (!finite)
                threads.mark(sent_by(table, static_cast<std::uint64_t>(table.rank)) +
                             chunk.place.part);
        }
        fold_lanes(threads, [&](std::uint32_t lane, std::uint32_t other) { shared(lane, other); });
        if (!chunk.alone()) {
            if (threads.index() == 0)
                static_cast<Range<Real>*>(table.partials)[chunk.partial()] = shared.range[0];
            return;
        }
        const auto scale = codec::scale_of(shared.range[0].low, shared.range[0].high);
        if (threads.index() == 0)
            reinterpret_cast<codec::Scale<Real>*>(chunk.packed)[chunk.block] = scale;
        write_codes(threads, chunk, x, scale);
    }
};

// For each block of several chunks.
template <class Real>
struct QuantizeScales {
    using Shared = RangeLanes<Real>;
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const WholeBlock block(table, number);
        const Range<Real>* partials =
            static_cast<const Range<Real>*>(table.partials) + block.first_partial;
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
            shared.range[lane] = {0, 0};
            for (std::uint64_t i = lane; i < block.cut.chunks; i += kLanes)
                shared.widen(lane, partials[i]);
        }
        fold_lanes(threads, [&](std::uint32_t lane, std::uint32_t other) { shared(lane, other); });
        if (threads.index() == 0)
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

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared&, const CodecTable& table,
                                        std::uint64_t number) {
        const BlockChunk chunk(table, number);
        const auto scale = reinterpret_cast<const codec::Scale<Real>*>(chunk.packed)[chunk.block];
        write_codes(threads, chunk, Input<Format>(chunk.place.row), scale);
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

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const BlockChunk chunk(table, number);
        const Input<Format> x(chunk.place.row);
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
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
            if (!finite)
                threads.mark(sent_by(table, static_cast<std::uint64_t>(table.rank)) +
                             chunk.place.part);
        }
        threads.sync();
        write_bits(threads, shared, chunk);
        fold_lanes(threads,
                   [&](std::uint32_t lane, std::uint32_t other) { shared.lanes(lane, other); });
        if (threads.index() != 0) return;
        if (chunk.alone())
            reinterpret_cast<codec::Levels<Real>*>(chunk.packed)[chunk.block] =
                codec::levels_of<Real>(shared.lanes.first(), chunk.count);
        else
            static_cast<codec::Sums*>(table.partials)[chunk.partial()] = shared.lanes.first();
    }

private:
    static_assert(codec::kSumChunk == 8 * kLanes, "a byte for each lane");

    template <class Threads>
    static LIBDDP_COOPERATIVE void write_bits(const Threads& threads, Shared& shared,
                                              const BlockChunk& chunk) {
        unsigned char* bits = chunk.template body<Real>() + chunk.begin / 8;
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
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

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const WholeBlock block(table, number);
        const codec::Sums* partials =
            static_cast<const codec::Sums*>(table.partials) + block.first_partial;
        for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
            codec::Sums sums;
            for (std::uint64_t i = lane; i < block.cut.chunks; i += kLanes) sums += partials[i];
            shared.positive[lane] = sums.positive;
            shared.other[lane] = sums.other;
            shared.positives[lane] = sums.positives;
        }
        fold_lanes(threads, [&](std::uint32_t lane, std::uint32_t other) { shared(lane, other); });
        if (threads.index() == 0)
            reinterpret_cast<codec::Levels<Real>*>(block.packed)[block.place.number] =
                codec::levels_of<Real>(shared.first(), block.count);
    }
};

// UNPACKING

constexpr std::uint32_t kTogether = 8;

// Elements from `begin`, a multiple of 8, of a part as one rank has packed it.
template <class Real>
class QuantizeReader {
public:
    LIBDDP_EVERYWHERE QuantizeReader(const CodecTable& table, const CodecRow& row,
                                     std::uint64_t begin)
        : begin_(begin),
          block_(codec::block_size(table.block, row.count)),
          first_(begin / block_),
          left_((first_ + 1) * block_ - begin),
          blocks_(codec::divide_up(row.count, block_)) {}

    LIBDDP_EVERYWHERE void read(const unsigned char* packed, std::uint32_t n,
                                Real (&values)[kTogether]) const {
        const auto* scales = reinterpret_cast<const codec::Scale<Real>*>(packed);
        const std::uint64_t codes =
            load_word<std::uint64_t>(packed + blocks_ * sizeof *scales + begin_);
        const codec::Scale<Real>* at = scales + first_;
        codec::Scale<Real> scale = *at;
        std::uint64_t left = left_;
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kTogether; ++i) {
            if (i >= n) break;
            if (left == 0) {
                scale = *++at;
                left = block_;
            }
            --left;
            values[i] = codec::value_of(static_cast<std::uint8_t>(codes >> (8 * i)), scale);
        }
    }

private:
    const std::uint64_t begin_, block_, first_, left_, blocks_;
};

template <class Real>
class OneBitReader {
public:
    LIBDDP_EVERYWHERE OneBitReader(const CodecTable& table, const CodecRow& row,
                                   std::uint64_t begin) {
        const std::uint64_t block = codec::block_size(table.block, row.count);
        level_ = begin / block;
        bits_ = codec::divide_up(row.count, block) * sizeof(codec::Levels<Real>) + begin / 8;
    }

    LIBDDP_EVERYWHERE void read(const unsigned char* packed, std::uint32_t,
                                Real (&values)[kTogether]) const {
        const codec::Levels<Real> levels =
            reinterpret_cast<const codec::Levels<Real>*>(packed)[level_];
        const std::uint32_t bits = packed[bits_];
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kTogether; ++i)
            values[i] = (bits >> i) & 1u ? levels.positive : levels.other;
    }

private:
    std::uint64_t level_, bits_;
};

template <class Format, template <class> class Reader>
struct AddUp {
    using Real = typename Format::Compute;
    struct Shared {
        std::uint8_t spoilt;
    };
    static constexpr int kThreads = 256;
    static constexpr std::uint64_t kChunk = std::uint64_t{kTogether} * kThreads;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const CodecTable& table, std::uint64_t number) {
        const ChunkPlace place(table, number);
        const Stretch stretch(place.number, kChunk, place.row.count);
        const Input<Format> input(place.row);
        const bool spoilt = is_spoilt(threads, table, place.part, shared.spoilt);
        for (std::uint32_t i = threads.index() * kTogether; i < stretch.count;
             i += threads.size() * kTogether) {
            const std::uint32_t n = stretch.count - i < kTogether ? stretch.count - i : kTogether;
            if (!spoilt) keep_and_add(table, place.row, input, stretch.begin + i, n);
            if (spoilt) spoil(input.gradient(stretch.begin + i), n);
        }
    }

private:
    using Stored = typename Format::Stored;

    static LIBDDP_COOPERATIVE void keep_and_add(const CodecTable& table, const CodecRow& row,
                                                const Input<Format>& input, std::uint64_t begin,
                                                std::uint32_t n) {
        const Reader<Real> reader(table, row, begin);
        Real sums[kTogether] = {}, values[kTogether] = {};
        for (std::int32_t r = 0; r < table.world; ++r) {
            reader.read(sent_by(table, static_cast<std::uint64_t>(r)) + row.packed, n, values);
            if (r == table.rank && input.residual(0)) keep(input, begin, n, values);
            LIBDDP_UNROLL
            for (std::uint32_t i = 0; i < kTogether; ++i) sums[i] += values[i];
        }
        Stored results[kTogether];
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kTogether; ++i)
            results[i] = Format::store(sums[i] * static_cast<Real>(table.scale));
        store_some(input.gradient(begin), results, n);
    }

    // Keeps the part of the gradient that this rank's bytes lack. The gradient is still its own.
    static LIBDDP_COOPERATIVE void keep(const Input<Format>& input, std::uint64_t begin,
                                        std::uint32_t n, const Real (&sent)[kTogether]) {
        Stored gradient[kTogether];
        Real residual[kTogether];
        load_some(gradient, static_cast<const Stored*>(input.gradient(begin)), n);
        load_some(residual, static_cast<const Real*>(input.residual(begin)), n);
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kTogether; ++i)
            residual[i] = Format::load(gradient[i]) + residual[i] - sent[i];
        store_some(input.residual(begin), residual, n);
    }

    static LIBDDP_COOPERATIVE void spoil(Stored* gradient, std::uint32_t n) {
        for (std::uint32_t i = 0; i < n; ++i) gradient[i] = Format::store(quiet_nan<Real>());
    }
};

}  // namespace libddp::cuda
