// The arithmetic of numbers of 8 bits in blocks (codec.h), shared by the CPU and by kernels. All of
// it is integers, and single f32 or f64 operations, so that the bits depend on nothing else.
//
// An element x of a block whose largest magnitude is L becomes q = x / L * kMost, rounded to f32. A
// format has a fixed-point number for q, whose upper bits are the code: what is added to the lower
// ones decides how it is rounded.
#pragma once

#include <Random123/philox.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/codec_arithmetic.h"
#include "kernels/everywhere.h"

namespace libddp::eight_bits {

inline constexpr std::uint32_t kMostBlock = 2048;  // elements

LIBDDP_EVERYWHERE std::uint32_t bits_of(float x) {
    std::uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
LIBDDP_EVERYWHERE float float_of(std::uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// One of both, without a branch in loops that are to become vectors.
LIBDDP_EVERYWHERE std::uint32_t chosen(bool first, std::uint32_t a, std::uint32_t b) {
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(first);
    return (a & mask) | (b & ~mask);
}

// Added to a fixed-point number whose lowest `kBits` bits are cut off. stochastic: it goes up with
// the probability that these bits say; otherwise to the nearest, of two the even one.
template <int kBits>
LIBDDP_EVERYWHERE std::uint32_t rounding(std::uint32_t fixed, std::uint32_t draw, bool stochastic) {
    const std::uint32_t half = (1u << (kBits - 1)) - 1 + ((fixed >> kBits) & 1u);
    return chosen(stochastic, draw >> (32 - kBits), half);
}

struct Int8 {
    static constexpr float kMost = 127;
    // An element is wrong by at most so many spaces when it is rounded to nearest, of which kMost
    // are in the largest magnitude.
    static LIBDDP_EVERYWHERE std::uint8_t code_of(float q, std::uint32_t draw, bool stochastic) {
        // 15 bits behind the point; the sum has the unit in its last bit.
        const std::uint32_t fixed = bits_of(q * 0x1p15f + 0x1.8p23f) - 0x4b400000u;
        const std::uint32_t sum = fixed + rounding<15>(fixed, draw, stochastic);
        return static_cast<std::uint8_t>(sum >> 15);
    }
    static LIBDDP_EVERYWHERE float value_of(std::uint8_t code) {
        return static_cast<float>(static_cast<std::int8_t>(code));
    }
};

// A sign, exponents and kMantissa bits, without infinities: as OCP's formats of 8 bits.
template <int kMantissa>
struct Float8 {
    static constexpr std::uint32_t kBias = kMantissa == 3 ? 7 : 15;
    static constexpr float kMost = kMantissa == 3 ? 448.0f : 57344.0f;

    static LIBDDP_EVERYWHERE std::uint8_t code_of(float q, std::uint32_t draw, bool stochastic) {
        const std::uint32_t bits = bits_of(q), magnitude = bits & 0x7fffffffu;
        // Below the smallest normal number the exponent stays, and the adder shifts the bits.
        const std::uint32_t small = bits_of(float_of(magnitude) * kLift + 0x1p23f) - 0x4b000000u;
        const std::uint32_t fixed =
            chosen(magnitude < kNormal, small, magnitude - (kNormal - kUnit));
        const std::uint32_t sum = fixed + rounding<kCut>(fixed, draw, stochastic);
        return static_cast<std::uint8_t>(sum >> kCut | bits >> 31 << 7);
    }
    // Also of the codes that code_of() never gives, which have an exponent of ones.
    static LIBDDP_EVERYWHERE float value_of(std::uint8_t code) {
        const std::uint32_t magnitude = code & 0x7fu;
        const float normal = float_of((magnitude << kCut) + (kNormal - kUnit));
        const float small = static_cast<float>(static_cast<std::int32_t>(magnitude)) * kStep;
        const std::uint32_t value =
            chosen(magnitude < 1u << kMantissa, bits_of(small), bits_of(normal));
        return float_of(value | static_cast<std::uint32_t>(code >> 7) << 31);
    }

private:
    static constexpr int kCut = 23 - kMantissa;
    static constexpr std::uint32_t kUnit = 1u << 23;               // of exponents
    static constexpr std::uint32_t kNormal = (128 - kBias) << 23;  // the smallest normal number
    static constexpr float kLift = kMantissa == 3 ? 0x1p29f : 0x1p37f;
    static constexpr float kStep = kMantissa == 3 ? 0x1p-9f : 0x1p-16f;
};
using E4M3 = Float8<3>;
using E5M2 = Float8<2>;

template <class Format, class Real>
inline constexpr Real kPart = Real{1} / static_cast<Real>(Format::kMost);
// So that the largest element is met exactly.
static_assert(127 * kPart<Int8, float> == 1 && 127 * kPart<Int8, double> == 1);
static_assert(448 * kPart<E4M3, float> == 1 && 448 * kPart<E4M3, double> == 1);
static_assert(57344 * kPart<E5M2, float> == 1 && 57344 * kPart<E5M2, double> == 1);

// largest: of the block, above 0. Division first: largest may be the smallest number.
template <class Format, class Real>
LIBDDP_EVERYWHERE std::uint8_t code_of(Real x, Real largest, std::uint32_t draw, bool stochastic) {
    return Format::code_of(static_cast<float>(x / largest * static_cast<Real>(Format::kMost)), draw,
                           stochastic);
}
// NaN if largest is.
template <class Format, class Real>
LIBDDP_EVERYWHERE Real value_of(std::uint8_t code, Real largest) {
    return static_cast<Real>(Format::value_of(code)) * kPart<Format, Real> * largest;
}

// A block in what is sent: its largest magnitude, or NaN if one of its elements is not finite; then
// a byte an element, and what aligns the next block.
template <class Real>
LIBDDP_EVERYWHERE std::uint64_t block_bytes(std::uint64_t count) {
    return sizeof(Real) + (count + sizeof(Real) - 1) / sizeof(Real) * sizeof(Real);
}
template <class Real>
LIBDDP_EVERYWHERE std::uint64_t block_begin(std::uint64_t block, std::uint64_t number) {
    return number * block_bytes<Real>(block);
}

// RANDOM NUMBERS
//
// A draw belongs to an element of a parameter, a rank and a step, wherever and however it is
// computed. Elements of a block are taken in groups of 64. In a group, number i has word i / 16 of
// the numbers that Philox4x32-10 gives for i % 16.

inline constexpr std::uint32_t kGroup = 64, kTogether = 16;

struct Draws {
    std::uint64_t step;
    std::uint64_t first;  // element of the parameter that begins the block
    std::uint32_t param;
    std::uint32_t rank;
};
// In place of a rank: for the sum.
inline constexpr std::uint32_t kOfTheSum = 0xffffffffu;

// Words of element 16 * group + lane of each group of 64, and of those 16, 32 and 48 further on.
struct FourDraws {
    std::uint32_t word[4];
};
LIBDDP_EVERYWHERE FourDraws four_draws(const Draws& draws, std::uint32_t group,
                                       std::uint32_t lane) {
    const philox4x32_ctr_t counter{
        {group * kTogether + lane, static_cast<std::uint32_t>(draws.first),
         static_cast<std::uint32_t>(draws.first >> 32) ^ (draws.rank << 16 | draws.rank >> 16),
         draws.param}};
    const philox4x32_key_t key{
        {static_cast<std::uint32_t>(draws.step), static_cast<std::uint32_t>(draws.step >> 32)}};
    const philox4x32_ctr_t words = philox4x32_R(10, counter, key);
    return {{words[0], words[1], words[2], words[3]}};
}

}  // namespace libddp::eight_bits
