// Which kernels pack and unpack a batch, in which order, for whoever can run them. Plain C++.
//
// Run has start<Kernel>(table), which enqueues the kernel's work on all chunks of the table, and
// zero(memory, bytes).
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/codec.h"
#include "kernels/cuda/codec_blocks.h"
#include "kernels/cuda/codec_eight_bits.h"
#include "kernels/cuda/codec_topk.h"
#include "kernels/cuda/tables.h"
#include "kernels/device_kernels.h"

namespace libddp::cuda {

// Calls use(table) for tables that hold all parts.
template <class Use>
void each_codec_table(const ddp_codec_batch& batch, double scale, Use use) {
    CodecTable table{};
    table.gathered = static_cast<unsigned char*>(batch.gathered);
    table.size = batch.size;
    table.partials = batch.scratch;
    table.block = batch.codec.block;
    table.scale = scale;
    table.rank = batch.rank;
    table.world = batch.world;
    for (std::size_t first = 0; first < batch.part_count; first += kCodecRows) {
        table.first_part = static_cast<std::int32_t>(first);
        table.rows =
            static_cast<std::int32_t>(std::min<std::size_t>(kCodecRows, batch.part_count - first));
        for (std::int32_t i = 0; i < table.rows; ++i) {
            const ddp_codec_part& part = batch.parts[first + static_cast<std::size_t>(i)];
            table.row[i] = {part.gradient, part.residual, part.count, part.packed, 0, 0, 0};
            if (batch.codec.kind == DDP_CODEC_TOPK)
                table.row[i].kept = topk_count(batch.codec, part.count);
        }
        use(table);
    }
}

// Numbers the chunks, of which each row has as many as chunks_of(row) says.
template <class ChunksOf>
void number_chunks(CodecTable& table, ChunksOf chunks_of) {
    table.chunks = 0;
    for (std::int32_t i = 0; i < table.rows; ++i) {
        table.row[i].first_chunk = table.chunks;
        table.chunks += chunks_of(table.row[i]);
    }
}

// The same for what chunks leave behind. Returns how many there are.
template <class PartialsOf>
std::uint64_t number_partials(CodecTable& table, PartialsOf partials_of) {
    std::uint64_t partials = 0;
    for (std::int32_t i = 0; i < table.rows; ++i) {
        table.row[i].first_partial = partials;
        partials += partials_of(table.row[i]);
    }
    return partials;
}

// BLOCKS

inline std::uint64_t chunks_of_blocks(const CodecTable& table, const CodecRow& row,
                                      bool of_several) {
    const BlockCut cut(table, row);
    return of_several && cut.chunks == 1 ? 0 : cut.blocks * cut.chunks;
}

// Chunks leaves something of each block of several chunks, of which Blocks makes what belongs into
// the packed bytes.
template <class Chunks, class Blocks, class Run>
void encode_blocks(CodecTable& table, const Run& run) {
    number_partials(table, [&](const CodecRow& row) { return chunks_of_blocks(table, row, true); });
    number_chunks(table, [&](const CodecRow& row) { return chunks_of_blocks(table, row, false); });
    run.template start<Chunks>(table);
    number_chunks(table, [&](const CodecRow& row) {
        const BlockCut cut(table, row);
        return cut.chunks == 1 ? 0 : cut.blocks;
    });
    run.template start<Blocks>(table);
}

template <class Format, class Run>
void encode_quantize(CodecTable& table, const Run& run) {
    encode_blocks<QuantizeRanges<Format>, QuantizeScales<typename Format::Compute>>(table, run);
    number_chunks(table, [&](const CodecRow& row) { return chunks_of_blocks(table, row, true); });
    run.template start<QuantizeCodes<Format>>(table);
}

template <class Format, class Run>
void encode_onebit(CodecTable& table, const Run& run) {
    encode_blocks<OneBitSums<Format>, OneBitLevels<typename Format::Compute>>(table, run);
}

// TOP-K

inline std::uint64_t search_chunks(const CodecRow& row) {
    return codec::divide_up(row.count, kSearchChunk);
}

template <class Format, class Run>
void encode_topk(CodecTable& table, const Run& run) {
    using Real = typename Format::Compute;
    const std::uint64_t chunks = number_partials(table, search_chunks);
    table.searches = static_cast<Found*>(table.partials) + chunks;
    run.zero(table.searches, static_cast<std::size_t>(table.rows) * sizeof(Search));
    const auto for_parts = [&] {
        number_chunks(table, [](const CodecRow&) { return std::uint64_t{1}; });
    };
    for (table.left = codec::kMagnitudeBits<Real>; table.left > 0;) {
        table.digit = std::min(table.left, codec::kDigit);
        table.left -= table.digit;
        number_chunks(table, search_chunks);
        run.template start<TopKCount<Format>>(table);
        for_parts();
        run.template start<TopKChoose<Real>>(table);
    }
    number_chunks(table, search_chunks);
    run.template start<TopKFind<Format>>(table);
    for_parts();
    run.template start<TopKPlaces>(table);
    number_chunks(table, search_chunks);
    run.template start<TopKWrite<Format>>(table);
}

// 8 BITS

// Calls use(table) for tables that hold all parts. spoilt: a byte for each part, for encode.
template <class Use>
void each_eight_bits_table(const ddp_codec_batch& batch, double scale, void* spoilt, Use use) {
    EightBitsTable table{};
    table.gathered = static_cast<const unsigned char*>(batch.gathered);
    table.size = batch.size;
    table.sent = static_cast<unsigned char*>(batch.sent);
    table.spoilt = static_cast<unsigned char*>(spoilt);
    table.block = batch.codec.block;
    table.scale = scale;
    table.step = batch.step;
    table.drawer = batch.drawer;
    table.world = batch.world;
    table.kind = batch.codec.kind;
    table.stochastic = batch.codec.stochastic != 0;
    table.keeps = batch.keeps != 0;
    for (std::size_t first = 0; first < batch.part_count; first += kEightBitsRows) {
        table.rows = static_cast<std::int32_t>(
            std::min<std::size_t>(kEightBitsRows, batch.part_count - first));
        table.chunks = 0;
        for (std::int32_t i = 0; i < table.rows; ++i) {
            const ddp_codec_part& part = batch.parts[first + static_cast<std::size_t>(i)];
            const ddp_codec_place& place = batch.places[first + static_cast<std::size_t>(i)];
            table.row[i] = {part.gradient, part.residual, place.loss,  part.count, part.packed,
                            place.first,   table.chunks,  place.param, place.whole};
            table.chunks += codec::divide_up(part.count, table.block);
        }
        use(table);
    }
}

template <class Run>
void encode_eight_bits(const ddp_codec_batch& batch, const Run& run) {
    run.zero(batch.scratch, batch.part_count);
    with_floating(batch.dtype, [&](auto format) {
        using Format = decltype(format);
        each_eight_bits_table(batch, 1, batch.scratch, [&](const EightBitsTable& table) {
            run.template start<EightBitsPack<Format>>(table);
        });
        each_eight_bits_table(batch, 1, batch.scratch, [&](const EightBitsTable& table) {
            run.template start<EightBitsFinish<Format>>(table);
        });
    });
}

template <class Run>
void decode_eight_bits(const ddp_codec_batch& batch, double scale, const Run& run) {
    with_floating(batch.dtype, [&](auto format) {
        each_eight_bits_table(batch, scale, nullptr, [&](const EightBitsTable& table) {
            run.template start<EightBitsUnpack<decltype(format)>>(table);
        });
    });
}

template <class Run>
void recode_batch(const ddp_codec_batch& batch, double scale, const Run& run) {
    each_eight_bits_table(batch, scale, nullptr, [&](const EightBitsTable& table) {
        if (batch.dtype == DDP_F64)
            run.template start<EightBitsRepack<double>>(table);
        else
            run.template start<EightBitsRepack<float>>(table);
    });
}

// ALL

inline std::size_t codec_scratch(const ddp_codec_batch& batch) {
    if (has_shares(batch.codec)) return batch.part_count;
    std::size_t most = 0;
    each_codec_table(batch, 1, [&](CodecTable& table) {
        std::size_t bytes = 0;
        if (batch.codec.kind == DDP_CODEC_TOPK)
            bytes = number_partials(table, search_chunks) * sizeof(Found) +
                    static_cast<std::size_t>(table.rows) * sizeof(Search);
        else
            bytes = number_partials(
                        table,
                        [&](const CodecRow& row) { return chunks_of_blocks(table, row, true); }) *
                    std::max(sizeof(Range<double>), sizeof(codec::Sums));
        most = std::max(most, bytes);
    });
    return most;
}

template <class Run>
void encode_batch(const ddp_codec_batch& batch, const Run& run) {
    if (has_shares(batch.codec)) return encode_eight_bits(batch, run);
    run.zero(static_cast<unsigned char*>(batch.gathered) +
                 static_cast<std::size_t>(batch.rank) * batch.size,
             batch.part_count);
    with_floating(batch.dtype, [&](auto format) {
        using Format = decltype(format);
        each_codec_table(batch, 1, [&](CodecTable& table) {
            switch (batch.codec.kind) {
                case DDP_CODEC_QUANTIZE:
                    return encode_quantize<Format>(table, run);
                case DDP_CODEC_ONEBIT:
                    return encode_onebit<Format>(table, run);
                default:
                    return encode_topk<Format>(table, run);
            }
        });
    });
}

template <class Kernel, class Run>
void add_up(CodecTable& table, std::uint64_t chunk, const Run& run) {
    number_chunks(table,
                  [chunk](const CodecRow& row) { return codec::divide_up(row.count, chunk); });
    run.template start<Kernel>(table);
}

template <class Run>
void decode_batch(const ddp_codec_batch& batch, double scale, const Run& run) {
    if (has_shares(batch.codec)) return decode_eight_bits(batch, scale, run);
    with_floating(batch.dtype, [&](auto format) {
        using Format = decltype(format);
        using Quantize = AddUp<Format, QuantizeReader>;
        using OneBit = AddUp<Format, OneBitReader>;
        each_codec_table(batch, scale, [&](CodecTable& table) {
            switch (batch.codec.kind) {
                case DDP_CODEC_QUANTIZE:
                    return add_up<Quantize>(table, Quantize::kChunk, run);
                case DDP_CODEC_ONEBIT:
                    return add_up<OneBit>(table, OneBit::kChunk, run);
                default:
                    return add_up<TopKAddUp<Format>>(table, kScatterChunk, run);
            }
        });
    });
}

}  // namespace libddp::cuda
