// The kernel that unpacks what quantize and 1-bit have packed, and adds it up in the order of the ranks. A thread takes 8 elements
// of one part, which lie in one byte, or word, of every rank.
#pragma once

#include "kernels/cuda/codec_table.h"

namespace libddp::cuda {

constexpr std::uint32_t kTogether = 8;

// Elements from `begin`, a multiple of 8, of a part as one rank has packed it.
template <class Real>
class QuantizeReader {
public:
    LIBDDP_EVERYWHERE QuantizeReader(const CodecTable& table, const CodecRow& row, std::uint64_t begin)
        : begin_(begin),
          block_(codec::block_size(table.block, row.count)),
          first_(begin / block_),
          left_((first_ + 1) * block_ - begin),
          blocks_(codec::divide_up(row.count, block_)) {}

    LIBDDP_EVERYWHERE void read(const unsigned char* packed, std::uint32_t n, Real (&values)[kTogether]) const {
        const auto* scales = reinterpret_cast<const codec::Scale<Real>*>(packed);
        const std::uint64_t codes = load_word<std::uint64_t>(packed + blocks_ * sizeof *scales + begin_);
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
    LIBDDP_EVERYWHERE OneBitReader(const CodecTable& table, const CodecRow& row, std::uint64_t begin) {
        const std::uint64_t block = codec::block_size(table.block, row.count);
        level_ = begin / block;
        bits_ = codec::divide_up(row.count, block) * sizeof(codec::Levels<Real>) + begin / 8;
    }

    LIBDDP_EVERYWHERE void read(const unsigned char* packed, std::uint32_t, Real (&values)[kTogether]) const {
        const codec::Levels<Real> levels = reinterpret_cast<const codec::Levels<Real>*>(packed)[level_];
        const std::uint32_t bits = packed[bits_];
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kTogether; ++i) values[i] = (bits >> i) & 1u ? levels.positive : levels.other;
    }

private:
    std::uint64_t level_, bits_;
};

// n of 8 numbers, in accesses of 16 bytes where that is possible.
template <class T>
LIBDDP_EVERYWHERE void load_some(T (&values)[kTogether], const T* from, std::uint32_t n) {
    if (n == kTogether && (address(from) & 15u) == 0) return load_aligned(values, from);
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kTogether; ++i) values[i] = i < n ? from[i] : T{};
}
template <class T>
LIBDDP_EVERYWHERE void store_some(T* to, const T (&values)[kTogether], std::uint32_t n) {
    if (n == kTogether && (address(to) & 15u) == 0) return store_aligned(to, values);
    LIBDDP_UNROLL
    for (std::uint32_t i = 0; i < kTogether; ++i)
        if (i < n) to[i] = values[i];
}

template <class Format, template <class> class Reader>
struct AddUp {
    using Real = typename Format::Compute;
    struct Shared {
        std::uint8_t spoilt;
    };
    static constexpr int kThreads = 256;
    static constexpr std::uint64_t kChunk = std::uint64_t{kTogether} * kThreads;

    template <class Team>
    static LIBDDP_TEAMWORK void work(const Team& team, Shared& shared, const CodecTable& table, std::uint64_t number) {
        const ChunkPlace place(table, number);
        const Stretch stretch(place.number, kChunk, place.row.count);
        const Input<Format> input(place.row);
        const bool spoilt = is_spoilt(team, table, place.part, shared.spoilt);
        for (std::uint32_t i = team.rank() * kTogether; i < stretch.count; i += team.size() * kTogether) {
            const std::uint32_t n = stretch.count - i < kTogether ? stretch.count - i : kTogether;
            if (!spoilt) keep_and_add(table, place.row, input, stretch.begin + i, n);
            if (spoilt) spoil(input.gradient(stretch.begin + i), n);
        }
    }

private:
    using Stored = typename Format::Stored;

    static LIBDDP_TEAMWORK void keep_and_add(const CodecTable& table, const CodecRow& row, const Input<Format>& input,
                                             std::uint64_t begin, std::uint32_t n) {
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

    // What this rank's bytes lack. The gradient is still its own.
    static LIBDDP_TEAMWORK void keep(const Input<Format>& input, std::uint64_t begin, std::uint32_t n,
                                     const Real (&sent)[kTogether]) {
        Stored gradient[kTogether];
        Real residual[kTogether];
        load_some(gradient, static_cast<const Stored*>(input.gradient(begin)), n);
        load_some(residual, static_cast<const Real*>(input.residual(begin)), n);
        LIBDDP_UNROLL
        for (std::uint32_t i = 0; i < kTogether; ++i) residual[i] = Format::load(gradient[i]) + residual[i] - sent[i];
        store_some(input.residual(begin), residual, n);
    }

    static LIBDDP_TEAMWORK void spoil(Stored* gradient, std::uint32_t n) {
        for (std::uint32_t i = 0; i < n; ++i) gradient[i] = Format::store(quiet_nan<Real>());
    }
};

}  // namespace libddp::cuda
