// The CPU's codecs against their definitions (codec.h, codec_arithmetic.h), written down plainly.
#include "kernels/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/onebit.h"
#include "unit/device/reference.h"
#include "util/error.h"

using namespace libddp;

namespace {

template <class T>
std::vector<T> numbers(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<T> values(count);
    for (T& v : values)
        v = static_cast<T>(std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random),
                                      static_cast<int>(random() % 40) - 20));
    return values;
}

template <class T>
class Codecs : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Codecs, Types);

// Element i belongs to lane i modulo 128; lanes are added in halves.
template <class T>
double sum_in_lanes(const std::vector<T>& x, bool positive) {
    std::vector<double> lanes(128);
    for (std::size_t i = 0; i < x.size(); ++i)
        if ((x[i] > 0) == positive) lanes[i % 128] += static_cast<double>(x[i]);
    for (std::size_t half = 64; half > 0; half /= 2)
        for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

TYPED_TEST(Codecs, SumsOfABlockOnEveryInstructionSet) {
    reference::for_each_target([](const char* target) {
        SCOPED_TRACE(target);
        for (const std::size_t count : {1, 3, 7, 8, 9, 127, 128, 129, 1000, 1024}) {
            auto x = numbers<TypeParam>(count, static_cast<unsigned>(count));
            if (count > 5) x[5] = -0.0;
            std::vector<std::uint8_t> bits((count + 7) / 8 + 1, 0xa5);
            const codec::Sums sums = cpu::onebit_sums(x.data(), count, bits.data());
            EXPECT_EQ(sums.positive, sum_in_lanes(x, true)) << count;
            EXPECT_EQ(sums.other, sum_in_lanes(x, false)) << count;
            std::size_t positives = 0;
            for (std::size_t i = 0; i < count; ++i) {
                EXPECT_EQ((bits[i / 8] >> (i % 8)) & 1, x[i] > 0 ? 1 : 0) << i << " of " << count;
                positives += x[i] > 0 ? 1 : 0;
            }
            EXPECT_EQ(sums.positives, positives);
            EXPECT_EQ(bits.back(), 0xa5) << "written behind the end";
        }
    });
}

// One part on one rank: what it becomes, and what is left.
template <class T>
struct OnePart {
    OnePart(const ddp_codec& codec, std::vector<T> values, std::vector<T> left)
        : gradient(std::move(values)), residual(std::move(left)) {
        const std::size_t bytes =
            8 + (packed_size(codec, reference::kDtype<T>, gradient.size()) + 7) / 8 * 8;
        gathered.resize(bytes / 8);
        part = {gradient.data(), residual.empty() ? nullptr : residual.data(), gradient.size(), 8};
        batch = {codec, &part,   1,       reference::kDtype<T>,
                 0,     1,       0,       gathered.data(),
                 bytes, nullptr, nullptr, nullptr,
                 0,     0,       0};
        scratch.resize(cpu::encode_scratch(batch) / sizeof(T) + 1);
        batch.scratch = scratch.data();
    }
    OnePart(const OnePart&) = delete;
    OnePart& operator=(const OnePart&) = delete;

    void run(double scale = 1) {
        cpu::encode(batch);
        cpu::decode(batch, scale);
    }

    std::vector<T> gradient, residual, scratch;
    std::vector<std::uint64_t> gathered;
    ddp_codec_part part;
    ddp_codec_batch batch;
};

// A block of 1 bit, and what is read from it.
template <class T>
struct OneBlock {
    explicit OneBlock(const std::vector<T>& x)
        : bytes(packed_size({DDP_CODEC_ONEBIT, 0, 1024, 0}, reference::kDtype<T>, x.size()) / 4 +
                2),
          values(x.size()) {
        auto* block = reinterpret_cast<std::byte*>(bytes.data());
        finite = cpu::pack_onebit(x.data(), x.size(), block);
        cpu::add_onebit(block, x.size(), T{1}, values.data());
    }
    std::vector<std::uint64_t> bytes;
    bool finite;
    std::vector<T> values;
};

TYPED_TEST(Codecs, ElementsOfABlockBecomeTheMeanOfTheirSign) {
    for (const std::size_t count : {1, 7, 8, 129, 1000, 1024}) {
        const auto x = numbers<TypeParam>(count, static_cast<unsigned>(count));
        const auto positives =
            static_cast<double>(std::count_if(x.begin(), x.end(), [](auto v) { return v > 0; }));
        const double others = static_cast<double>(count) - positives;
        const OneBlock<TypeParam> block(x);
        EXPECT_TRUE(block.finite);
        for (std::size_t i = 0; i < count; ++i)
            ASSERT_EQ(block.values[i],
                      x[i] > 0 ? static_cast<TypeParam>(sum_in_lanes(x, true) / positives)
                               : static_cast<TypeParam>(sum_in_lanes(x, false) / others));
    }
}

TYPED_TEST(Codecs, ABlockWithAnElementThatIsNotFiniteIsNaN) {
    for (const auto bad : {std::numeric_limits<TypeParam>::infinity(),
                           std::numeric_limits<TypeParam>::quiet_NaN()}) {
        auto x = numbers<TypeParam>(300, 1);
        x[299] = bad;
        const OneBlock<TypeParam> block(x);
        EXPECT_FALSE(block.finite);
        for (const TypeParam value : block.values) EXPECT_TRUE(std::isnan(value));
    }
    // Sums that overflow are none of these.
    const std::vector<TypeParam> most(9, std::numeric_limits<TypeParam>::max());
    const OneBlock<TypeParam> block(most);
    EXPECT_TRUE(block.finite);
    EXPECT_EQ(block.values, most);
}

TYPED_TEST(Codecs, WhatIsLeftAndWhatIsSentAreTheWhole) {
    const ddp_codec codec{DDP_CODEC_TOPK, 0, 0, 0.1};
    const auto gradient = numbers<TypeParam>(3001, 1), before = numbers<TypeParam>(3001, 2);
    OnePart<TypeParam> one(codec, gradient, before), scaled(codec, gradient, before);
    one.run();
    scaled.run(0.25);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
        const TypeParam x = gradient[i] + before[i];
        ASSERT_EQ(one.residual[i], x - one.gradient[i]) << "element " << i;
        ASSERT_EQ(scaled.gradient[i], one.gradient[i] * TypeParam{0.25});
        ASSERT_EQ(scaled.residual[i], one.residual[i]);
    }
}

TYPED_TEST(Codecs, NotFiniteBecomesNaNAndChangesNoResidual) {
    auto gradient = numbers<TypeParam>(100, 1);
    const auto before = numbers<TypeParam>(100, 2);
    gradient[70] = -std::numeric_limits<TypeParam>::infinity();
    OnePart<TypeParam> one({DDP_CODEC_TOPK, 0, 0, 0.1}, gradient, before);
    one.run();
    for (const TypeParam value : one.gradient) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(one.residual, before);
}

TYPED_TEST(Codecs, RoundingModesOfTheThreadDoNotMatter) {
    const auto x = numbers<TypeParam>(1000, 1), left = numbers<TypeParam>(1000, 2);
    OnePart<TypeParam> one({DDP_CODEC_TOPK, 0, 0, 0.1}, x, left),
        other({DDP_CODEC_TOPK, 0, 0, 0.1}, x, left);
    one.run();
    std::fesetround(FE_UPWARD);
    other.run();
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(one.gradient, other.gradient);
    EXPECT_EQ(one.residual, other.residual);
}

TEST(CodecSizes, OfEveryFormat) {
    EXPECT_EQ(packed_size({DDP_CODEC_ONEBIT, 0, 512, 0}, DDP_F32, 1001), 2u * 8 + 64 + 64);
    EXPECT_EQ(packed_size({DDP_CODEC_ONEBIT, 0, 8, 0}, DDP_BF16, 17), 3u * 12);
    EXPECT_EQ(packed_size({DDP_CODEC_ONEBIT, 0, 64, 0}, DDP_F64, 65), 2u * 24);
    EXPECT_EQ(packed_size({DDP_CODEC_TOPK, 0, 0, 0.01}, DDP_F16, 1001), 11u * 8);
    EXPECT_EQ(packed_size({DDP_CODEC_TOPK, 0, 0, 0.01}, DDP_F64, 1000), 10u * 12);
    EXPECT_EQ(topk_count({DDP_CODEC_TOPK, 0, 0, 1e-9}, 5), 1u);
    EXPECT_EQ(topk_count({DDP_CODEC_TOPK, 0, 0, 1}, 5), 5u);
    EXPECT_EQ(packed_size({DDP_CODEC_TOPK, 0, 0, 1e-9}, DDP_F32, 4'294'967'296), 5u * 8);
    EXPECT_THROW(packed_size({DDP_CODEC_TOPK, 0, 0, 1e-9}, DDP_F32, 4'294'967'297), Error);
}

}  // namespace
