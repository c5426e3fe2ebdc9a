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

TYPED_TEST(Codecs, SumsOfAChunkOnEveryInstructionSet) {
    reference::for_each_target([](const char* target) {
        SCOPED_TRACE(target);
        for (const std::size_t count : {1, 3, 7, 8, 9, 127, 128, 129, 1000, 1024}) {
            auto x = numbers<TypeParam>(count, static_cast<unsigned>(count));
            if (count > 5) x[5] = -0.0;
            std::vector<std::uint8_t> bits((count + 7) / 8 + 1, 0xa5);
            const codec::Sums sums = cpu::onebit_chunk(x.data(), count, bits.data());
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

// The chunks of a long block are added up as the elements of a chunk are.
TYPED_TEST(Codecs, LevelsOfALongBlock) {
    const auto x = numbers<TypeParam>(200'000, 4);
    std::vector<double> above, below;
    for (std::size_t begin = 0; begin < x.size(); begin += 1024) {
        const std::vector<TypeParam> chunk(
            x.begin() + static_cast<std::ptrdiff_t>(begin),
            x.begin() + static_cast<std::ptrdiff_t>(std::min(begin + 1024, x.size())));
        above.push_back(sum_in_lanes(chunk, true));
        below.push_back(sum_in_lanes(chunk, false));
    }
    const auto positives =
        static_cast<double>(std::count_if(x.begin(), x.end(), [](auto v) { return v > 0; }));
    const auto count = static_cast<double>(x.size());
    OnePart<TypeParam> one({DDP_CODEC_ONEBIT, 0, 0, 0}, x, {});
    one.run();
    for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(one.gradient[i],
                  x[i] > 0
                      ? static_cast<TypeParam>(sum_in_lanes(above, true) / positives)
                      : static_cast<TypeParam>(sum_in_lanes(below, false) / (count - positives)));
}

TYPED_TEST(Codecs, WhatIsLeftAndWhatIsSentAreTheWhole) {
    for (const ddp_codec& codec :
         {ddp_codec{DDP_CODEC_QUANTIZE, 0, 100, 0}, ddp_codec{DDP_CODEC_ONEBIT, 0, 64, 0},
          ddp_codec{DDP_CODEC_TOPK, 0, 0, 0.1}}) {
        const auto gradient = numbers<TypeParam>(3001, 1), before = numbers<TypeParam>(3001, 2);
        OnePart<TypeParam> one(codec, gradient, before), scaled(codec, gradient, before);
        one.run();
        scaled.run(0.25);
        for (std::size_t i = 0; i < gradient.size(); ++i) {
            const TypeParam x = gradient[i] + before[i];
            ASSERT_EQ(one.residual[i], x - one.gradient[i])
                << "codec " << codec.kind << ", element " << i;
            ASSERT_EQ(scaled.gradient[i], one.gradient[i] * TypeParam{0.25});
            ASSERT_EQ(scaled.residual[i], one.residual[i]);
        }
    }
}

TYPED_TEST(Codecs, NotFiniteBecomesNaNAndChangesNoResidual) {
    for (const ddp_codec_kind kind : {DDP_CODEC_QUANTIZE, DDP_CODEC_ONEBIT, DDP_CODEC_TOPK}) {
        auto gradient = numbers<TypeParam>(100, 1);
        const auto before = numbers<TypeParam>(100, 2);
        gradient[70] = -std::numeric_limits<TypeParam>::infinity();
        OnePart<TypeParam> one({kind, 0, 0, 0.1}, gradient, before);
        one.run();
        for (const TypeParam value : one.gradient) EXPECT_TRUE(std::isnan(value));
        EXPECT_EQ(one.residual, before);
    }
}

TYPED_TEST(Codecs, RoundingModesOfTheThreadDoNotMatter) {
    for (const ddp_codec_kind kind : {DDP_CODEC_QUANTIZE, DDP_CODEC_ONEBIT, DDP_CODEC_TOPK}) {
        OnePart<TypeParam> one({kind, 0, 0, 0.1}, numbers<TypeParam>(1000, 1),
                               numbers<TypeParam>(1000, 2));
        OnePart<TypeParam> other({kind, 0, 0, 0.1}, numbers<TypeParam>(1000, 1),
                                 numbers<TypeParam>(1000, 2));
        one.run();
        std::fesetround(FE_UPWARD);
        other.run();
        EXPECT_EQ(std::fegetround(), FE_UPWARD);
        std::fesetround(FE_TONEAREST);
        EXPECT_EQ(one.gradient, other.gradient);
        EXPECT_EQ(one.residual, other.residual);
    }
}

TEST(CodecSizes, OfEveryFormat) {
    EXPECT_EQ(packed_size({DDP_CODEC_QUANTIZE, 0, 0, 0}, DDP_BF16, 1000), 8u + 1000);
    EXPECT_EQ(packed_size({DDP_CODEC_QUANTIZE, 0, 300, 0}, DDP_F64, 1000), 4u * 16 + 1000);
    EXPECT_EQ(packed_size({DDP_CODEC_ONEBIT, 0, 512, 0}, DDP_F32, 1001), 2u * 8 + 126);
    EXPECT_EQ(packed_size({DDP_CODEC_TOPK, 0, 0, 0.01}, DDP_F16, 1001), 11u * 8);
    EXPECT_EQ(packed_size({DDP_CODEC_TOPK, 0, 0, 0.01}, DDP_F64, 1000), 10u * 12);
    EXPECT_EQ(topk_count({DDP_CODEC_TOPK, 0, 0, 1e-9}, 5), 1u);
    EXPECT_EQ(topk_count({DDP_CODEC_TOPK, 0, 0, 1}, 5), 5u);
    EXPECT_EQ(packed_size({DDP_CODEC_TOPK, 0, 0, 1e-9}, DDP_F32, 4'294'967'296), 5u * 8);
    EXPECT_THROW(packed_size({DDP_CODEC_TOPK, 0, 0, 1e-9}, DDP_F32, 4'294'967'297), Error);
}

}  // namespace
