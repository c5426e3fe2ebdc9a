// Numbers of 8 bits in blocks against their definition (kernels/eight_bits.h), written down plainly.
#include "kernels/cpu/eight_bits.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/codec.h"
#include "unit/device/reference.h"

namespace eight_bits_blocks_test {

using namespace libddp;
using eight_bits::Draws;

struct Format {
    const char* name;
    ddp_codec_kind kind;
    int bias, mantissa;  // of a floating-point format
    double most;

    // By the definition of the format. The codes that nobody writes are not numbers.
    double value(int code) const {
        if (kind == DDP_CODEC_INT8) return code < 128 ? code : code - 256;
        const int exponent = (code & 127) >> mantissa, rest = code & ((1 << mantissa) - 1);
        const double size = exponent == 0
                                ? std::ldexp(rest, 1 - bias - mantissa)
                                : std::ldexp((1 << mantissa) + rest, exponent - bias - mantissa);
        return code < 128 ? size : -size;
    }
    // How far two neighbours around q are from each other.
    double space(double q) const {
        if (kind == DDP_CODEC_INT8) return 1;
        int exponent = 0;
        std::frexp(std::fabs(q), &exponent);
        return std::ldexp(1, std::max(exponent - 1, 1 - bias) - mantissa);
    }
};
const Format kFormats[] = {{"int8", DDP_CODEC_INT8, 0, 0, 127},
                           {"e4m3", DDP_CODEC_E4M3, 7, 3, 448},
                           {"e5m2", DDP_CODEC_E5M2, 15, 2, 57344}};

// A block as rank 3 writes it, in the fifth step.
template <class T>
struct Packed {
    Packed(const Format& format, const std::vector<T>& x, bool stochastic, std::uint64_t first = 0,
           std::uint32_t rank = 3)
        : draws{5, first, 7, rank},
          bytes(static_cast<std::size_t>(libddp::eight_bits::block_bytes<T>(x.size())) / 8 + 2) {
        finite =
            cpu::eight_bits::pack({format.kind, stochastic, draws}, x.data(), x.size(), block());
        std::memcpy(&largest, block(), sizeof largest);
        values.resize(x.size());
        cpu::eight_bits::add(format.kind, block(), x.size(), T{1}, values.data());
    }
    std::byte* block() { return reinterpret_cast<std::byte*>(bytes.data()); }
    int code(std::size_t i) const {
        return static_cast<int>(reinterpret_cast<const std::uint8_t*>(bytes.data())[sizeof(T) + i]);
    }

    Draws draws;
    std::vector<std::uint64_t> bytes;
    bool finite;
    T largest;
    std::vector<T> values;
};

template <class T>
std::vector<T> some_numbers(std::size_t count, unsigned seed, int range = 12) {
    std::mt19937 random(seed);
    std::vector<T> values(count);
    for (T& v : values)
        v = static_cast<T>(std::ldexp(
            std::uniform_real_distribution<double>(-1, 1)(random),
            range == 0 ? 0 : -static_cast<int>(random() % static_cast<unsigned>(range))));
    return values;
}

template <class T>
class EightBits : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(EightBits, Types);

TYPED_TEST(EightBits, ErrorsHaveTheStatedBound) {
    reference::for_each_target([](const char* target) {
        for (const Format& format : kFormats)
            for (const bool stochastic : {false, true})
                for (const std::size_t n :
                     {1u, 2u, 15u, 16u, 17u, 63u, 64u, 65u, 256u, 2047u, 2048u}) {
                    SCOPED_TRACE(testing::Message() << target << " " << format.name << " " << n);
                    const auto x = some_numbers<TypeParam>(n, static_cast<unsigned>(n), 24);
                    Packed<TypeParam> packed(format, x, stochastic);
                    double largest = 0;
                    for (const auto v : x) largest = std::max<double>(largest, std::fabs(v));
                    ASSERT_EQ(packed.largest, largest);
                    for (std::size_t i = 0; i < n; ++i) {
                        const double q = x[i] / largest * format.most;
                        const double bound = format.space(q) * largest / format.most *
                                             (stochastic ? 1 : 0.5) * (1 + 0x1p-12);
                        ASSERT_LE(std::fabs(packed.values[i] - x[i]), bound)
                            << "element " << i << ": " << packed.values[i] << " for " << x[i];
                        ASSERT_NEAR(packed.values[i],
                                    format.value(packed.code(i)) * largest / format.most,
                                    largest * 0x1p-22);
                    }
                }
    });
}

// All that the formats can say is said exactly, in blocks of any size of numbers.
TYPED_TEST(EightBits, TheirNumbersAreExact) {
    for (const Format& format : kFormats)
        for (const double unit : {1.0, 0x1p-100, 0x1p90}) {
            std::vector<TypeParam> x;
            std::vector<int> codes;
            for (int code = 0; code < 256; ++code) {
                const double v = format.value(code);
                if (std::fabs(v) > format.most) continue;
                x.push_back(static_cast<TypeParam>(v * unit));
                codes.push_back(code);
            }
            for (const bool stochastic : {false, true}) {
                Packed<TypeParam> packed(format, x, stochastic);
                ASSERT_EQ(packed.largest, format.most * unit);
                for (std::size_t i = 0; i < x.size(); ++i)
                    ASSERT_EQ(format.value(packed.code(i)), format.value(codes[i])) << format.name;
            }
        }
}

template <class T>
void expect_ties_to_even(const Format& format) {
    for (int code = 0; code < 127 && format.value(code + 1) <= format.most; ++code)
        for (const int sign : {1, -1}) {
            const double between = (format.value(code) + format.value(code + 1)) / 2;
            const double value =
                format.value(T::code_of(static_cast<float>(sign * between), 0, false));
            EXPECT_EQ(value, sign * format.value(code + code % 2))
                << format.name << " between " << code << " and the next";
        }
}

TEST(EightBitsTies, GoToTheEvenCode) {
    expect_ties_to_even<eight_bits::Int8>(kFormats[0]);
    expect_ties_to_even<eight_bits::E4M3>(kFormats[1]);
    expect_ties_to_even<eight_bits::E5M2>(kFormats[2]);
}

TYPED_TEST(EightBits, ZerosEqualNumbersAndTheSmallestNumbers) {
    const TypeParam least = std::numeric_limits<TypeParam>::denorm_min();
    const TypeParam most = std::numeric_limits<TypeParam>::max();
    for (const Format& format : kFormats)
        for (const TypeParam v : {TypeParam{0}, least, 3 * least, TypeParam(1e-30), TypeParam{0.1f},
                                  TypeParam{7}, most}) {
            const std::vector<TypeParam> x{v, -v, 0, v};
            for (const bool stochastic : {false, true}) {
                Packed<TypeParam> packed(format, x, stochastic);
                EXPECT_TRUE(packed.finite);
                EXPECT_EQ(packed.values, x) << format.name << " of " << v;
            }
        }
}

TYPED_TEST(EightBits, NotFiniteIsNaN) {
    for (const Format& format : kFormats)
        for (const TypeParam bad : {std::numeric_limits<TypeParam>::quiet_NaN(),
                                    std::numeric_limits<TypeParam>::infinity(),
                                    -std::numeric_limits<TypeParam>::infinity()}) {
            auto x = some_numbers<TypeParam>(300, 1);
            x[250] = bad;
            Packed<TypeParam> packed(format, x, false);
            EXPECT_FALSE(packed.finite);
            EXPECT_TRUE(std::isnan(packed.largest));
            for (const auto v : packed.values) ASSERT_TRUE(std::isnan(v));
        }
}

// The numbers of Random123, whatever the width of vectors.
TYPED_TEST(EightBits, DrawsBelongToElements) {
    reference::for_each_target([](const char* target) {
        SCOPED_TRACE(target);
        const auto x = some_numbers<TypeParam>(500, 9);
        const std::uint64_t first = (std::uint64_t{1} << 33) + 512;
        Packed<TypeParam> packed(kFormats[0], x, true, first);
        for (std::uint32_t i = 0; i < x.size(); ++i) {
            const auto words = eight_bits::four_draws(packed.draws, i / 64, i % 16);
            ASSERT_EQ(packed.code(i), (eight_bits::code_of<eight_bits::Int8>(
                                          x[i], packed.largest, words.word[i % 64 / 16], true)))
                << "element " << i;
        }
    });
}

TYPED_TEST(EightBits, DrawsDifferByStepPlaceParameterAndRank) {
    const Draws one{5, 512, 7, 3};
    std::vector<Draws> others(6, one);
    others[0].step = 6;
    others[1].first = 0;
    others[2].first += std::uint64_t{1} << 32;
    others[3].param = 8;
    others[4].rank = 2;
    others[5].rank = eight_bits::kOfTheSum;
    const auto word = eight_bits::four_draws(one, 1, 2).word[0];
    for (const Draws& other : others) EXPECT_NE(word, eight_bits::four_draws(other, 1, 2).word[0]);
}

// The mean over many draws is the number itself.
TYPED_TEST(EightBits, StochasticRoundingIsUnbiased) {
    constexpr int kDraws = 4000;
    for (const Format& format : kFormats) {
        auto x = some_numbers<TypeParam>(128, 11);
        x[0] = 1;
        std::vector<double> sum(x.size());
        for (std::uint32_t rank = 0; rank < kDraws; ++rank) {
            Packed<TypeParam> packed(format, x, true, 0, rank);
            for (std::size_t i = 0; i < x.size(); ++i) sum[i] += packed.values[i];
        }
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double space = format.space(x[i] * format.most) / format.most;
            EXPECT_NEAR(sum[i] / kDraws, x[i], 4.5 * 0.5 * space / std::sqrt(kDraws))
                << format.name << " element " << i;
        }
    }
}

// WHOLE SUMS: ranks pack, the owner of each share adds up, and all unpack.

template <class T>
struct Rank {
    std::vector<T> gradient, residual, loss;
    std::vector<std::uint64_t> sent, result;
};

template <class T>
struct Sum {
    static constexpr std::size_t kCount = 3001, kBlock = 96;
    static constexpr std::uint32_t kHalf = 16 * kBlock;  // where the second part begins

    Sum(const Format& form, int world_size, bool is_stochastic)
        : format(form), world(world_size), stochastic(is_stochastic) {
        for (int r = 0; r < world; ++r) {
            Rank<T>& rank = ranks.emplace_back();
            rank.gradient = some_numbers<T>(kCount, static_cast<unsigned>(r));
            rank.residual = some_numbers<T>(kCount, static_cast<unsigned>(100 + r));
            for (T& v : rank.residual) v /= 8;
            rank.loss.assign(kCount, 0);
        }
    }

    // Both parts belong to parameter 4; all of it is one share.
    void run(double scale, bool feedback) {
        const ddp_codec codec{format.kind, stochastic, kBlock, 0};
        const ddp_dtype dtype = reference::kDtype<T>;
        const std::size_t half = packed_size(codec, dtype, kHalf);
        const std::size_t bytes = (half + packed_size(codec, dtype, kCount - kHalf) + 7) / 8 * 8;
        std::vector<std::uint64_t> gathered(bytes / 8 * static_cast<std::size_t>(world));
        std::vector<std::uint64_t> result(bytes / 8);
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            Rank<T>& rank = ranks[r];
            rank.sent.assign(bytes / 8, 0);
            const auto parts = parts_of(rank, half, feedback);
            const auto places = places_of(nullptr);
            cpu::encode(batch(codec, parts, places, 1, nullptr, bytes, rank.sent, r));
            std::copy(rank.sent.begin(), rank.sent.end(),
                      gathered.begin() + static_cast<std::ptrdiff_t>(r * bytes / 8));
        }
        {
            const auto parts = parts_of(ranks[0], half, false);
            const auto places = places_of(feedback ? &ranks[0] : nullptr);
            cpu::recode(batch(codec, parts, places, world, gathered.data(), bytes, result,
                              eight_bits::kOfTheSum),
                        scale);
        }
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            const auto parts = parts_of(ranks[r], half, feedback);
            const auto places = places_of(feedback && r == 0 ? &ranks[0] : nullptr);
            cpu::decode(batch(codec, parts, places, 1, result.data(), bytes, ranks[r].sent, r), 1);
        }
    }

    const Format& format;
    const int world;
    const bool stochastic;
    std::vector<Rank<T>> ranks;

private:
    static std::array<ddp_codec_part, 2> parts_of(Rank<T>& rank, std::size_t half, bool feedback) {
        T* const residual = feedback ? rank.residual.data() : nullptr;
        return {ddp_codec_part{rank.gradient.data(), residual, kHalf, 0},
                ddp_codec_part{rank.gradient.data() + kHalf, residual ? residual + kHalf : nullptr,
                               kCount - kHalf, half}};
    }
    static std::array<ddp_codec_place, 2> places_of(Rank<T>* keeps) {
        T* const loss = keeps ? keeps->loss.data() : nullptr;
        return {ddp_codec_place{0, 4, 0, loss},
                ddp_codec_place{kHalf, 4, 0, loss ? loss + kHalf : nullptr}};
    }
    static ddp_codec_batch batch(const ddp_codec& codec, const std::array<ddp_codec_part, 2>& parts,
                                 const std::array<ddp_codec_place, 2>& places, int from,
                                 void* gathered, std::size_t bytes,
                                 std::vector<std::uint64_t>& sent, std::size_t drawer) {
        return {codec,
                parts.data(),
                2,
                reference::kDtype<T>,
                0,
                from,
                0,
                gathered,
                bytes,
                nullptr,
                places.data(),
                sent.data(),
                2,
                static_cast<std::uint32_t>(drawer),
                0};
    }
};

// Results are the mean but for both roundings, and what ranks keep makes up for the rest.
TYPED_TEST(EightBits, SumsAndWhatIsLeft) {
    for (const Format& format : kFormats)
        for (const bool stochastic : {false, true})
            for (const int world : {1, 2, 5}) {
                SCOPED_TRACE(testing::Message() << format.name << " world " << world);
                Sum<TypeParam> sum(format, world, stochastic);
                const auto before = sum.ranks;
                sum.run(1.0 / world, true);
                for (std::size_t i = 0; i < sum.kCount; ++i) {
                    double mean = 0, kept = 0;
                    for (const auto& rank : before)
                        mean += (static_cast<double>(rank.gradient[i]) + rank.residual[i]) / world;
                    for (const auto& rank : sum.ranks) {
                        kept += static_cast<double>(rank.residual[i]) / world;
                        ASSERT_EQ(rank.gradient[i], sum.ranks[0].gradient[i]);
                    }
                    ASSERT_NEAR(sum.ranks[0].gradient[i] + kept, mean, 4e-7);
                    ASSERT_NEAR(
                        sum.ranks[0].gradient[i], mean,
                        (format.space(format.most / 2) / format.most) * (stochastic ? 2 : 1) * 2.3);
                }
            }
}

TYPED_TEST(EightBits, APartThatIsNotFiniteSpoilsItsParameterAndNoResidual) {
    for (const Format& format : kFormats) {
        Sum<TypeParam> sum(format, 3, false);
        sum.ranks[1].gradient[sum.kCount - 1] = std::numeric_limits<TypeParam>::infinity();
        const auto before = sum.ranks;
        sum.run(1, true);
        for (std::size_t r = 0; r < sum.ranks.size(); ++r) {
            EXPECT_EQ(sum.ranks[r].residual, before[r].residual);
            for (const auto v : sum.ranks[r].gradient) ASSERT_TRUE(std::isnan(v));
        }
    }
}

TYPED_TEST(EightBits, ASumThatOverflowsIsNaN) {
    Sum<TypeParam> sum(kFormats[0], 2, false);
    for (auto& rank : sum.ranks) rank.gradient[100] = std::numeric_limits<TypeParam>::max();
    sum.run(1, false);
    EXPECT_TRUE(std::isnan(sum.ranks[0].gradient[96]));
    EXPECT_FALSE(std::isnan(sum.ranks[0].gradient[95]));
    EXPECT_FALSE(std::isnan(sum.ranks[0].gradient[192]));
}

}  // namespace eight_bits_blocks_test
