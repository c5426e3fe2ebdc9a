// Kernels of numbers of 8 bits in blocks (kernels/eight_bits.h). Cooperating threads take one block
// of a part, of at most 2,048 elements, after another.
//
// Packing: a first kernel packs all blocks, and marks parameters that are not finite. A second one
// says so in each of their blocks, and for all others keeps what is left out.
#pragma once

#include <limits>

#include "kernels/cuda/codec_table.h"
#include "kernels/eight_bits.h"

namespace libddp::cuda {

struct EightBitsRow {
    void* gradient;
    void* residual;  // null: none
    void* loss;      // null: none
    std::uint64_t count;
    std::uint64_t packed;  // where its bytes begin in a message
    std::uint64_t first;   // the element of the parameter with which it begins
    std::uint64_t first_chunk;
    std::uint32_t param;
    std::uint32_t whole;  // the first part of the parameter
};

constexpr int kEightBitsRows = 56;

struct EightBitsTable {
    std::uint64_t chunks;  // blocks of all rows
    const unsigned char* gathered;
    std::uint64_t size;  // bytes of a message
    unsigned char* sent;
    unsigned char* spoilt;  // of each part; that of a parameter's first one counts
    std::uint64_t block;
    double scale;
    std::uint64_t step;
    std::uint32_t drawer;
    std::int32_t world;
    std::int32_t rows;
    ddp_codec_kind kind;
    bool stochastic;
    bool keeps;
    EightBitsRow row[kEightBitsRows];
};
static_assert(sizeof(EightBitsTable) <= 4096);  // parameters of a kernel are 4 KiB at most

template <class Real>
struct EightBitsBlock {
    LIBDDP_EVERYWHERE EightBitsBlock(const EightBitsTable& table, std::uint64_t chunk)
        : row(table.row[find_row(table, chunk, 0, table.rows - 1)]),
          begin((chunk - row.first_chunk) * table.block),
          count(static_cast<std::uint32_t>(row.count - begin < table.block ? row.count - begin
                                                                           : table.block)),
          packed(row.packed + eight_bits::block_begin<Real>(table.block, chunk - row.first_chunk)) {
    }

    LIBDDP_EVERYWHERE Real* at(void* numbers) const {
        return numbers ? static_cast<Real*>(numbers) + begin : nullptr;
    }

    const EightBitsRow& row;
    const std::uint64_t begin;
    const std::uint32_t count;
    const std::uint64_t packed;
};

template <class Real>
LIBDDP_EVERYWHERE Real largest_of(const unsigned char* block) {
    return *reinterpret_cast<const Real*>(block);
}

template <class Real>
LIBDDP_EVERYWHERE std::uint8_t code_of(const EightBitsTable& table, Real x, Real largest,
                                       std::uint32_t draw) {
    switch (table.kind) {
        case DDP_CODEC_INT8:
            return eight_bits::code_of<eight_bits::Int8>(x, largest, draw, table.stochastic);
        case DDP_CODEC_E4M3:
            return eight_bits::code_of<eight_bits::E4M3>(x, largest, draw, table.stochastic);
        default:
            return eight_bits::code_of<eight_bits::E5M2>(x, largest, draw, table.stochastic);
    }
}

// Element i of a block in a message.
template <class Real>
LIBDDP_EVERYWHERE Real value_of(const EightBitsTable& table, const unsigned char* block,
                                std::uint32_t i, Real largest) {
    const std::uint8_t code = block[sizeof(Real) + i];
    switch (table.kind) {
        case DDP_CODEC_INT8:
            return eight_bits::value_of<eight_bits::Int8>(code, largest);
        case DDP_CODEC_E4M3:
            return eight_bits::value_of<eight_bits::E4M3>(code, largest);
        default:
            return eight_bits::value_of<eight_bits::E5M2>(code, largest);
    }
}

template <class Real>
LIBDDP_EVERYWHERE Real value_in(const EightBitsTable& table, const unsigned char* block,
                                std::uint32_t i) {
    return value_of<Real>(table, block, i, largest_of<Real>(block));
}

// Element i of a block of what all ranks have sent.
template <class Real>
LIBDDP_EVERYWHERE Real sum_of(const EightBitsTable& table, std::uint64_t packed, std::uint32_t i) {
    Real sum = 0;
    for (std::int32_t r = 0; r < table.world; ++r)
        sum += value_in<Real>(
            table, table.gathered + static_cast<std::uint64_t>(r) * table.size + packed, i);
    const auto scale = static_cast<Real>(table.scale);
    return scale == 1 ? sum : sum * scale;
}

template <class Real>
struct LargestLanes {
    LIBDDP_EVERYWHERE void operator()(std::uint32_t lane, std::uint32_t other) {
        if (bits[other] > bits[lane]) bits[lane] = bits[other];
    }
    codec::Bits<Real> bits[kLanes];
};

// Writes a block of numbers x(i). Returns its largest magnitude to all threads, or NaN.
template <class Real, class Threads, class Numbers>
LIBDDP_COOPERATIVE Real pack_block(const Threads& threads, LargestLanes<Real>& lanes,
                                   const EightBitsTable& table, const EightBitsBlock<Real>& block,
                                   const Numbers& x) {
    for (std::uint32_t lane = threads.index(); lane < kLanes; lane += threads.size()) {
        lanes.bits[lane] = 0;
        for (std::uint32_t i = lane; i < block.count; i += kLanes) {
            const auto bits = codec::magnitude<Real>(x(i));
            if (bits > lanes.bits[lane]) lanes.bits[lane] = bits;
        }
    }
    fold_lanes(threads, [&](std::uint32_t lane, std::uint32_t other) { lanes(lane, other); });
    Real largest = bits_as<Real>(lanes.bits[0]);
    if (!codec::is_finite(largest)) largest = quiet_nan<Real>();
    unsigned char* const to = table.sent + block.packed;
    if (threads.index() == 0) *reinterpret_cast<Real*>(to) = largest;
    // One number of Philox for four elements of a group.
    const std::uint32_t quarters =
        (block.count + eight_bits::kGroup - 1) / eight_bits::kGroup * eight_bits::kTogether;
    for (std::uint32_t quarter = threads.index(); quarter < quarters; quarter += threads.size()) {
        const std::uint32_t group = quarter / eight_bits::kTogether,
                            lane = quarter % eight_bits::kTogether;
        eight_bits::FourDraws draws{};
        if (table.stochastic && largest > 0)
            draws = eight_bits::four_draws(
                {table.step, block.row.first + block.begin, block.row.param, table.drawer}, group,
                lane);
        for (std::uint32_t word = 0; word < 4; ++word) {
            const std::uint32_t i =
                group * eight_bits::kGroup + word * eight_bits::kTogether + lane;
            if (i >= block.count) break;
            to[sizeof(Real) + i] =
                largest > 0 ? code_of<Real>(table, x(i), largest, draws.word[word]) : 0;
        }
    }
    return largest;
}

template <class Format>
struct EightBitsInput {
    using Real = typename Format::Compute;

    LIBDDP_EVERYWHERE explicit EightBitsInput(const EightBitsBlock<Real>& block)
        : gradient(static_cast<typename Format::Stored*>(block.row.gradient) + block.begin),
          residual(block.at(block.row.residual)) {}
    LIBDDP_EVERYWHERE Real operator()(std::uint32_t i) const {
        const Real x = Format::load(gradient[i]);
        return residual ? x + residual[i] : x;
    }

    typename Format::Stored* const gradient;
    Real* const residual;
};

// gradient + residual - sent, and what the sum has lost: of element i.
template <class Format>
LIBDDP_EVERYWHERE void keep(const EightBitsTable& table,
                            const EightBitsBlock<typename Format::Compute>& block,
                            const EightBitsInput<Format>& x, std::uint32_t i) {
    using Real = typename Format::Compute;
    Real left = x(i) - value_in<Real>(table, table.sent + block.packed, i);
    if (const Real* loss = block.at(block.row.loss)) left += loss[i];
    x.residual[i] = left;
}

template <class Format>
struct EightBitsPack {
    using Real = typename Format::Compute;
    using Shared = LargestLanes<Real>;
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const EightBitsTable& table, std::uint64_t chunk) {
        const EightBitsBlock<Real> block(table, chunk);
        const Real largest =
            pack_block(threads, shared, table, block, EightBitsInput<Format>(block));
        if (is_nan(largest) && threads.index() == 0) threads.mark(table.spoilt + block.row.whole);
    }
};

template <class Format>
struct EightBitsFinish {
    using Real = typename Format::Compute;
    struct Shared {};
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared&,
                                        const EightBitsTable& table, std::uint64_t chunk) {
        const EightBitsBlock<Real> block(table, chunk);
        if (table.spoilt[block.row.whole] != 0) {
            if (threads.index() == 0)
                *reinterpret_cast<Real*>(table.sent + block.packed) = quiet_nan<Real>();
            return;
        }
        const EightBitsInput<Format> x(block);
        if (!table.keeps || !x.residual) return;
        for (std::uint32_t i = threads.index(); i < block.count; i += threads.size())
            keep<Format>(table, block, x, i);
    }
};

// For the owner of a share.
template <class Real>
struct EightBitsRepack {
    struct Shared {
        LargestLanes<Real> lanes;
        Real sums[eight_bits::kMostBlock];
    };
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared& shared,
                                        const EightBitsTable& table, std::uint64_t chunk) {
        const EightBitsBlock<Real> block(table, chunk);
        for (std::uint32_t i = threads.index(); i < block.count; i += threads.size())
            shared.sums[i] = sum_of<Real>(table, block.packed, i);
        threads.sync();
        pack_block(threads, shared.lanes, table, block,
                   [&](std::uint32_t i) { return shared.sums[i]; });
        Real* const loss = block.at(block.row.loss);
        if (!loss) return;
        threads.sync();
        for (std::uint32_t i = threads.index(); i < block.count; i += threads.size())
            loss[i] = (shared.sums[i] - value_in<Real>(table, table.sent + block.packed, i)) /
                      static_cast<Real>(table.scale);
    }
};

template <class Format>
struct EightBitsUnpack {
    using Real = typename Format::Compute;
    struct Shared {};
    static constexpr int kThreads = kLanes;

    template <class Threads>
    static LIBDDP_COOPERATIVE void work(const Threads& threads, Shared&,
                                        const EightBitsTable& table, std::uint64_t chunk) {
        const EightBitsBlock<Real> block(table, chunk);
        const EightBitsInput<Format> x(block);
        const bool keeps = x.residual && !is_nan(sum_of<Real>(table, block.packed, 0));
        for (std::uint32_t i = threads.index(); i < block.count; i += threads.size()) {
            const Real sum = sum_of<Real>(table, block.packed, i);
            if (keeps) keep<Format>(table, block, x, i);
            x.gradient[i] = Format::store(sum);
        }
    }
};

}  // namespace libddp::cuda
