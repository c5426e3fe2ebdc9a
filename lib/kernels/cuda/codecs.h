// Which kernels pack and unpack a batch, in which order, for whoever can run them. Plain C++.
//
// Run has start<Kernel>(table), which enqueues the kernel's work on all chunks of the table, and
// zero(memory, bytes).
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/codec.h"
#include "kernels/cuda/codec_eight_bits.h"
#include "kernels/cuda/codec_onebit.h"
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

// BLOCKS

// Calls use(table) for tables that hold all parts. spoilt: a byte for each part, for encode.
template <class Use>
void each_eight_bits_table(const ddp_codec_batch& batch, double scale, void* spoilt, Use use) {
    EightBitsTable table{};
    table.gathered = static_cast<const unsigned char*>(batch.gathered);
    table.size = batch.size;
    table.sent = static_cast<unsigned char*>(batch.sent);
    table.spoilt = static_cast<unsigned char*>(spoilt);
    table.block = batch.codec.block;
    table.block_bytes = packed_size(batch.codec, batch.dtype, batch.codec.block);
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

template <template <class> class Coder, class Run>
void encode_shares(const ddp_codec_batch& batch, const Run& run) {
    run.zero(batch.scratch, batch.part_count);
    with_floating(batch.dtype, [&](auto format) {
        using Format = decltype(format);
        each_eight_bits_table(batch, 1, batch.scratch, [&](const EightBitsTable& table) {
            run.template start<SharesPack<Format, Coder>>(table);
        });
        each_eight_bits_table(batch, 1, batch.scratch, [&](const EightBitsTable& table) {
            run.template start<SharesFinish<Format, Coder>>(table);
        });
    });
}

template <template <class> class Coder, class Run>
void decode_shares(const ddp_codec_batch& batch, double scale, const Run& run) {
    with_floating(batch.dtype, [&](auto format) {
        each_eight_bits_table(batch, scale, nullptr, [&](const EightBitsTable& table) {
            run.template start<SharesUnpack<decltype(format), Coder>>(table);
        });
    });
}

template <template <class> class Coder, class Run>
void recode_shares(const ddp_codec_batch& batch, double scale, const Run& run) {
    each_eight_bits_table(batch, scale, nullptr, [&](const EightBitsTable& table) {
        if (batch.dtype == DDP_F64)
            run.template start<SharesRepack<Coder<double>>>(table);
        else
            run.template start<SharesRepack<Coder<float>>>(table);
    });
}

template <class Run>
void recode_batch(const ddp_codec_batch& batch, double scale, const Run& run) {
    if (batch.codec.kind == DDP_CODEC_ONEBIT)
        recode_shares<OneBitCoder>(batch, scale, run);
    else
        recode_shares<EightBitsCoder>(batch, scale, run);
}

// ALL

inline std::size_t codec_scratch(const ddp_codec_batch& batch) {
    if (has_shares(batch.codec)) return batch.part_count;
    std::size_t most = 0;
    each_codec_table(batch, 1, [&](CodecTable& table) {
        most = std::max(most, number_partials(table, search_chunks) * sizeof(Found) +
                                  static_cast<std::size_t>(table.rows) * sizeof(Search));
    });
    return most;
}

template <class Run>
void encode_batch(const ddp_codec_batch& batch, const Run& run) {
    if (batch.codec.kind == DDP_CODEC_ONEBIT) return encode_shares<OneBitCoder>(batch, run);
    if (has_shares(batch.codec)) return encode_shares<EightBitsCoder>(batch, run);
    run.zero(static_cast<unsigned char*>(batch.gathered) +
                 static_cast<std::size_t>(batch.rank) * batch.size,
             batch.part_count);
    with_floating(batch.dtype, [&](auto format) {
        each_codec_table(batch, 1,
                         [&](CodecTable& table) { encode_topk<decltype(format)>(table, run); });
    });
}

template <class Run>
void decode_batch(const ddp_codec_batch& batch, double scale, const Run& run) {
    if (batch.codec.kind == DDP_CODEC_ONEBIT) return decode_shares<OneBitCoder>(batch, scale, run);
    if (has_shares(batch.codec)) return decode_shares<EightBitsCoder>(batch, scale, run);
    with_floating(batch.dtype, [&](auto format) {
        each_codec_table(batch, scale, [&](CodecTable& table) {
            number_chunks(table, [](const CodecRow& row) {
                return codec::divide_up(row.count, kScatterChunk);
            });
            run.template start<TopKAddUp<decltype(format)>>(table);
        });
    });
}

}  // namespace libddp::cuda
