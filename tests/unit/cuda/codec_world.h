// Batches of gradients of every kind for the codecs, and what the CPU makes of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <vector>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "unit/cuda/values.h"

namespace libddp::testing_cuda {

using cuda::address;

struct Named {
    const char* name;
    ddp_codec codec;
};
inline std::ostream& operator<<(std::ostream& out, const Named& named) {
    return out << named.name;
}

inline ddp_codec quantize(std::size_t block) {
    return {DDP_CODEC_QUANTIZE, 0, block, 0};
}
inline ddp_codec onebit(std::size_t block) {
    return {DDP_CODEC_ONEBIT, 0, block, 0};
}
inline ddp_codec topk(double ratio) {
    return {DDP_CODEC_TOPK, 0, 0, ratio};
}

inline const std::vector<Named> kCodecs{{"quantize0", quantize(0)},
                                        {"quantize1", quantize(1)},
                                        {"quantize7", quantize(7)},
                                        {"quantize512", quantize(512)},
                                        {"quantize3000", quantize(3000)},
                                        {"onebit0", onebit(0)},
                                        {"onebit8", onebit(8)},
                                        {"onebit512", onebit(512)},
                                        {"onebit1024", onebit(1024)},
                                        {"onebit3000", onebit(3000)},
                                        {"topkOne", topk(1e-9)},
                                        {"topkSome", topk(0.05)},
                                        {"topkAll", topk(1)}};

using Bytes = std::vector<std::byte>;

// Numbers of one kind.
inline double number(int kind, std::size_t i, std::mt19937& random) {
    const double usual = static_cast<double>(random()) * 0x6p-32 - 3;
    switch (kind) {
        case 0:
            return usual;
        case 1:
            return i % 2 == 0 ? 0.0 : -0.0;
        case 2:
            return static_cast<double>(static_cast<int>(random() % 5)) - 2;  // ties
        case 3:
            return usual * 1e-41;  // subnormal in f32, and 0 in f16
        case 4:
            return std::ldexp(usual, static_cast<int>(random() % 26) - 13);
        default:
            return -std::fabs(usual);
    }
}
inline constexpr int kKinds = 6;

// Gradients that are not finite are made of random bits.
inline Bytes gradient(ddp_dtype dtype, std::size_t count, int kind, std::mt19937& random) {
    if (kind >= kKinds) return random_values(dtype, count, random);
    std::vector<double> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = number(kind, i, random);
    Bytes bytes(count * dtype_size(dtype));
    cpu::convert(bytes.data(), dtype, values.data(), DDP_F64, count);
    return bytes;
}

// One rank's side of a batch. A part begins `shift` elements after a place that is aligned to 64
// bytes.
class Side {
public:
    Side(const ddp_codec& codec, ddp_dtype dtype, const std::vector<std::size_t>& counts,
         std::size_t shift) {
        const std::size_t item = dtype_size(dtype), real = dtype_size(compute_dtype(dtype));
        std::size_t elements = 0, numbers = 0;
        for (const std::size_t count : counts)
            elements += (count + shift + 64 / item) / (64 / item) * (64 / item);
        for (const std::size_t count : counts) numbers += count;
        gradients = Bytes(elements * item + 128, std::byte{0xa5});
        residuals = Bytes(numbers * real);
        size = (counts.size() + 7) / 8 * 8;
        std::size_t at = 64 - address(gradients.data()) % 64;
        for (const std::size_t count : counts) {
            offsets.push_back(at + shift * item);
            parts.push_back({nullptr, nullptr, count, size});
            at += (count + shift + 64 / item) / (64 / item) * 64;
            size += (packed_size(codec, dtype, count) + 7) / 8 * 8;
        }
        batch.codec = codec;
        batch.part_count = counts.size();
        batch.dtype = dtype;
        batch.size = size;
    }

    // When its vectors stay where they are.
    void bind(std::byte* gathered, std::size_t rank, std::size_t world, bool feedback) {
        std::byte* residual = residuals.data();
        for (std::size_t i = 0; i < parts.size(); ++i) {
            parts[i].gradient = gradients.data() + offsets[i];
            if (feedback) parts[i].residual = residual;
            residual += parts[i].count * dtype_size(compute_dtype(batch.dtype));
        }
        batch.parts = parts.data();
        batch.gathered = gathered;
        batch.rank = static_cast<std::int32_t>(rank);
        batch.world = static_cast<std::int32_t>(world);
    }

    std::vector<ddp_codec_part> parts;
    std::vector<std::size_t> offsets;
    Bytes gradients, residuals, scratch;
    std::size_t size = 0;
    ddp_codec_batch batch{};
};

struct Setting {
    ddp_codec codec;
    ddp_dtype dtype;
    std::vector<std::size_t> counts;
    std::size_t world = 2, shift = 0;
    bool feedback = true, spoilt = false;
    double scale = 1;
};

// All ranks of one step.
struct World {
    World(const Setting& s, std::uint32_t seed) {
        std::mt19937 random(seed);
        for (std::size_t rank = 0; rank < s.world; ++rank) {
            auto& side = sides.emplace_back(s.codec, s.dtype, s.counts, s.shift);
            for (std::size_t i = 0; i < s.counts.size(); ++i) {
                // Every fifth part is not finite on one of the ranks.
                const bool bad = s.spoilt && i % 5 == 4 && rank == i % s.world;
                const auto kind = static_cast<int>((i + seed) % kKinds);
                const Bytes values = gradient(s.dtype, s.counts[i], bad ? kKinds : kind, random);
                std::copy(values.begin(), values.end(),
                          side.gradients.begin() + static_cast<std::ptrdiff_t>(side.offsets[i]));
            }
            // As an earlier step might have left them.
            const ddp_dtype real = compute_dtype(s.dtype);
            side.residuals = gradient(real, side.residuals.size() / dtype_size(real),
                                      static_cast<int>(seed % 5), random);
        }
        gathered = Bytes(sides[0].size * s.world, std::byte{0xcd});
        for (std::size_t rank = 0; rank < s.world; ++rank)
            sides[rank].bind(gathered.data(), rank, s.world, s.feedback);
    }

    std::vector<Side> sides;
    Bytes gathered;
};

inline void run_cpu(const Setting& s, World& world) {
    for (auto& side : world.sides) {
        side.scratch = Bytes(cpu::encode_scratch(side.batch) + 64);
        side.batch.scratch = side.scratch.data();
        cpu::encode(side.batch);
    }
    for (auto& side : world.sides) cpu::decode(side.batch, s.scale);
}

inline void compare_sent(const Setting& s, const World& expected, const World& actual) {
    for (std::size_t rank = 0; rank < s.world; ++rank) {
        const auto& side = expected.sides[rank];
        const std::byte *wanted = expected.gathered.data() + rank * side.size,
                        *sent = actual.gathered.data() + rank * side.size;
        for (std::size_t i = 0; i < s.counts.size(); ++i) {
            ASSERT_EQ(sent[i] != std::byte{0}, wanted[i] != std::byte{0}) << "flag of part " << i;
            if (wanted[i] != std::byte{0}) continue;
            const std::size_t bytes = packed_size(s.codec, s.dtype, s.counts[i]);
            const auto* begin = wanted + side.parts[i].packed;
            const auto differs =
                std::mismatch(begin, begin + bytes, sent + side.parts[i].packed).first;
            ASSERT_EQ(differs - begin, static_cast<std::ptrdiff_t>(bytes))
                << "byte of part " << i << " with " << s.counts[i] << " elements, rank " << rank;
        }
    }
}

inline void compare(const Setting& s, const World& expected, const World& actual) {
    compare_sent(s, expected, actual);
    if (::testing::Test::HasFatalFailure()) return;
    for (std::size_t rank = 0; rank < s.world; ++rank) {
        const auto &wanted = expected.sides[rank], &got = actual.sides[rank];
        for (std::size_t i = 0; i < s.counts.size(); ++i)
            ASSERT_TRUE(same(got.gradients.data() + got.offsets[i],
                             wanted.gradients.data() + wanted.offsets[i], s.counts[i], s.dtype))
                << "gradient " << i << " with " << s.counts[i] << " elements, rank " << rank;
        ASSERT_EQ(got.residuals, wanted.residuals) << "rank " << rank;
        for (std::size_t i = 0, from = 0; i <= s.counts.size(); ++i) {
            const std::size_t to = i < s.counts.size() ? got.offsets[i] : got.gradients.size();
            ASSERT_TRUE(std::all_of(got.gradients.begin() + static_cast<std::ptrdiff_t>(from),
                                    got.gradients.begin() + static_cast<std::ptrdiff_t>(to),
                                    [](std::byte b) { return b == std::byte{0xa5}; }))
                << "between gradients, before number " << i;
            if (i < s.counts.size()) from = to + s.counts[i] * dtype_size(s.dtype);
        }
    }
}

}  // namespace libddp::testing_cuda
