#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <limits>
#include <random>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "unit/device/reference.h"
#include "util/error.h"

namespace libddp {
namespace {

using namespace reference;

// One element type: how to read, combine and write an element with plain arithmetic.
template <ddp_dtype kDtype, class Stored, class Value>
struct Type {
    static constexpr ddp_dtype dtype = kDtype;
    using stored = Stored;
    using value = Value;
};
using TypeF16 = Type<DDP_F16, std::uint16_t, float>;
using TypeBf16 = Type<DDP_BF16, std::uint16_t, float>;
using TypeF32 = Type<DDP_F32, float, float>;
using TypeF64 = Type<DDP_F64, double, double>;
using TypeI32 = Type<DDP_I32, std::int32_t, std::int32_t>;
using TypeI64 = Type<DDP_I64, std::int64_t, std::int64_t>;
using TypeU8 = Type<DDP_U8, std::uint8_t, std::uint8_t>;
using TypeC64 = Type<DDP_C64, std::complex<float>, std::complex<float>>;
using TypeC128 = Type<DDP_C128, std::complex<double>, std::complex<double>>;

template <class T>
typename T::value value_of(typename T::stored stored) {
    if constexpr (T::dtype == DDP_F16)
        return static_cast<float>(f16_value(stored));
    else if constexpr (T::dtype == DDP_BF16)
        return bf16_value(stored);
    else
        return stored;
}

template <class T>
typename T::stored stored_of(typename T::value value) {
    if constexpr (T::dtype == DDP_F16)
        return f16_bits(value);
    else if constexpr (T::dtype == DDP_BF16)
        return bf16_bits(value);
    else
        return value;
}

template <class V>
V combine(V a, V b, ddp_reduce_op op) {
    if constexpr (requires { a.real(); }) {
        return op == DDP_SUM ? a + b
                             : V{a.real() * b.real() - a.imag() * b.imag(),
                                 a.real() * b.imag() + a.imag() * b.real()};
    } else {
        if constexpr (std::is_floating_point_v<V>)
            if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<V>::quiet_NaN();
        if (op == DDP_MIN) return std::min(a, b);
        if (op == DDP_MAX) return std::max(a, b);
        return static_cast<V>(op == DDP_SUM ? a + b : a * b);
    }
}

template <class V>
V scaled(V value, double scale) {
    if constexpr (std::is_integral_v<V>)
        return static_cast<V>(value / static_cast<V>(std::llround(1 / scale)));
    else if constexpr (requires { value.real(); })
        return value * static_cast<typename V::value_type>(scale);
    else
        return value * static_cast<V>(scale);
}

// Small integers: exact in every type and every order, so the comparison can be of bits.
template <class T>
std::vector<typename T::stored> numbers(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<typename T::stored> out(count);
    for (auto& x : out) {
        if constexpr (requires { out[0].real(); })
            x = {static_cast<typename T::value::value_type>(random() % 9) - 4,
                 static_cast<typename T::value::value_type>(random() % 9) - 4};
        else if constexpr (T::dtype == DDP_U8)
            x = static_cast<std::uint8_t>(random() % 6);
        else
            x = stored_of<T>(static_cast<typename T::value>(static_cast<int>(random() % 9) - 4));
    }
    return out;
}

template <class T>
class Reduce : public testing::Test {};
using Types = testing::Types<TypeF16, TypeBf16, TypeF32, TypeF64, TypeI32, TypeI64, TypeU8, TypeC64,
                             TypeC128>;
TYPED_TEST_SUITE(Reduce, Types);

template <class T>
std::vector<typename T::stored> expected(const std::vector<std::vector<typename T::stored>>& inputs,
                                         ddp_reduce_op op, double scale) {
    std::vector<typename T::stored> out(inputs[0].size());
    for (std::size_t i = 0; i < out.size(); ++i) {
        auto sum = value_of<T>(inputs[0][i]);
        for (std::size_t j = 1; j < inputs.size(); ++j)
            sum = combine(sum, value_of<T>(inputs[j][i]), op);
        out[i] = stored_of<T>(scaled(sum, scale));
    }
    return out;
}

template <class T>
bool same_bytes(const std::vector<typename T::stored>& a, const typename T::stored* b) {
    return a.empty() || std::equal(a.begin(), a.end(), b);
}

TYPED_TEST(Reduce, EveryOpCountAndArity) {
    using T = TypeParam;
    for_each_target([&](const char* target) {
        for (ddp_reduce_op op : {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX}) {
            if (!cpu::can_reduce(T::dtype, op)) continue;
            for (std::size_t arity : {1, 2, 3, 5})
                for (std::size_t count : {0, 1, 2, 3, 7, 8, 15, 31, 63, 64, 65, 511, 513, 1030})
                    for (double scale : {1.0, 0.5, 1.0 / 3}) {
                        SCOPED_TRACE(testing::Message()
                                     << target << " op " << op << " arity " << arity << " count "
                                     << count << " scale " << scale);
                        std::vector<std::vector<typename T::stored>> inputs;
                        std::vector<const void*> pointers;
                        for (unsigned j = 0; j < arity; ++j) inputs.push_back(numbers<T>(count, j));
                        for (auto& input : inputs) pointers.push_back(input.data());
                        std::vector<typename T::stored> out(count + 1);
                        out[count] = typename T::stored(7);
                        cpu::reduce(out.data(), pointers.data(), arity, count, T::dtype, op, scale);
                        ASSERT_TRUE(same_bytes<T>(expected<T>(inputs, op, scale), out.data()));
                        ASSERT_EQ(out[count], typename T::stored(7)) << "wrote past the end";
                    }
        }
    });
}

TYPED_TEST(Reduce, InPlaceOnAnyInputAndUnaligned) {
    using T = TypeParam;
    constexpr std::size_t kCount = 601;
    for (std::size_t target_input : {0, 1, 2})
        for (std::size_t shift : {0, 1, 3}) {
            std::vector<std::vector<typename T::stored>> inputs, memory;
            std::vector<const void*> pointers;
            for (unsigned j = 0; j < 3; ++j) {
                inputs.push_back(numbers<T>(kCount, j));
                memory.emplace_back(shift + j);
                memory.back().insert(memory.back().end(), inputs.back().begin(),
                                     inputs.back().end());
            }
            for (unsigned j = 0; j < 3; ++j) pointers.push_back(memory[j].data() + shift + j);
            auto* out = memory[target_input].data() + shift + target_input;
            cpu::reduce(out, pointers.data(), 3, kCount, T::dtype, DDP_SUM, 0.5);
            EXPECT_TRUE(same_bytes<T>(expected<T>(inputs, DDP_SUM, 0.5), out));
        }
}

TYPED_TEST(Reduce, ScaleCopy) {
    using T = TypeParam;
    for (double scale : {1.0, 0.25}) {
        auto input = numbers<T>(333, 1);
        std::vector<typename T::stored> out(input.size());
        cpu::scale_copy(out.data(), input.data(), input.size(), T::dtype, scale);
        EXPECT_TRUE(same_bytes<T>(expected<T>({input}, DDP_SUM, scale), out.data()));
        auto want = out;
        cpu::scale_copy(input.data(), input.data(), input.size(), T::dtype, scale);
        EXPECT_EQ(input, want);
    }
}

// Bits must not depend on where in a buffer an element lies: whole vectors and single lanes do the
// same.
TYPED_TEST(Reduce, BitsDoNotDependOnTheCut) {
    using T = TypeParam;
    if constexpr (std::is_floating_point_v<typename T::value>) {
        std::mt19937 random(5);
        std::uniform_real_distribution<float> uniform(-1, 1);
        constexpr std::size_t kCount = 1000;
        std::vector<std::vector<typename T::stored>> inputs(
            4, std::vector<typename T::stored>(kCount));
        for (auto& input : inputs)
            for (auto& x : input) x = stored_of<T>(uniform(random));
        for_each_target([&](const char* target) {
            SCOPED_TRACE(target);
            std::vector<typename T::stored> whole(kCount), pieces(kCount);
            std::vector<const void*> pointers;
            for (auto& input : inputs) pointers.push_back(input.data());
            cpu::reduce(whole.data(), pointers.data(), 4, kCount, T::dtype, DDP_SUM, 1.0 / 3);
            for (std::size_t begin = 0, n = 1; begin < kCount;
                 begin += n, n = std::min(n + 2, kCount - begin)) {
                for (std::size_t j = 0; j < 4; ++j) pointers[j] = inputs[j].data() + begin;
                cpu::reduce(pieces.data() + begin, pointers.data(), 4, n, T::dtype, DDP_SUM,
                            1.0 / 3);
            }
            EXPECT_EQ(whole, pieces);
            EXPECT_EQ(whole, expected<T>(inputs, DDP_SUM, 1.0 / 3));
        });
    }
}

TYPED_TEST(Reduce, NanReachesTheResult) {
    using T = TypeParam;
    if constexpr (std::is_floating_point_v<typename T::value>) {
        const auto nan = stored_of<T>(std::numeric_limits<typename T::value>::quiet_NaN());
        const auto inf = stored_of<T>(std::numeric_limits<typename T::value>::infinity());
        for_each_target([&](const char* target) {
            for (ddp_reduce_op op : {DDP_SUM, DDP_PROD, DDP_MIN, DDP_MAX})
                for (std::size_t where : {0, 1, 2}) {
                    std::vector<std::vector<typename T::stored>> inputs(
                        3, std::vector<typename T::stored>(67, inf));
                    for (std::size_t i = 0; i < 67; i += 5) inputs[where][i] = nan;
                    const void* pointers[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
                    std::vector<typename T::stored> out(67);
                    cpu::reduce(out.data(), pointers, 3, 67, T::dtype, op, 1);
                    for (std::size_t i = 0; i < 67; ++i)
                        EXPECT_EQ(std::isnan(value_of<T>(out[i])), i % 5 == 0)
                            << target << " op " << op << " at " << i;
                }
        });
    }
}

TEST(ReduceHalf, AccumulatesInF32) {
    // 1 + 2^-11 + 2^-11 is 1 when each addition rounds to f16, and the next f16 after 1 when only
    // the sum does.
    const std::uint16_t one = f16_bits(1), tiny = f16_bits(0x1p-11), sum = f16_bits(1 + 0x1p-10);
    const void* inputs[] = {&one, &tiny, &tiny};
    std::uint16_t out = 0;
    cpu::reduce(&out, inputs, 3, 1, DDP_F16, DDP_SUM, 1);
    EXPECT_EQ(out, sum);
    // The sum of two large numbers overflows f16; their mean does not.
    const std::uint16_t large = f16_bits(60000);
    const void* pair[] = {&large, &large};
    cpu::reduce(&out, pair, 2, 1, DDP_F16, DDP_SUM, 0.5);
    EXPECT_EQ(out, large);
}

TEST(ReduceInteger, DividesTowardZeroAndWraps) {
    const std::int32_t a[] = {-7, 7, INT32_MAX, INT32_MIN}, b[] = {0, 0, 1, -1};
    const void* inputs[] = {a, b};
    std::int32_t out[4];
    cpu::reduce(out, inputs, 2, 4, DDP_I32, DDP_SUM, 1.0 / 2);
    EXPECT_EQ(out[0], -3);
    EXPECT_EQ(out[1], 3);
    cpu::reduce(out, inputs, 2, 4, DDP_I32, DDP_SUM, 1);
    EXPECT_EQ(out[2], INT32_MIN);
    EXPECT_EQ(out[3], INT32_MAX);
    cpu::scale_copy(out, a, 4, DDP_I32, 1.0 / 49);  // 1 / (1.0 / 49) is not 49 exactly
    EXPECT_EQ(out[2], INT32_MAX / 49);
}

TEST(ReduceInteger, DividesByMoreThanTheTypeHolds) {
    const std::uint8_t a[] = {0, 44, 255};
    for (const int world : {256, 300, 65536}) {
        std::uint8_t out[] = {1, 1, 1};
        cpu::scale_copy(out, a, 3, DDP_U8, 1.0 / world);
        EXPECT_THAT(out, testing::Each(0)) << world;
    }
}

TEST(ReduceInteger, LargeI64SumsAreExact) {
    const std::int64_t a = (std::int64_t{1} << 60) + 1, b = (std::int64_t{1} << 60) + 2;
    const void* inputs[] = {&a, &b};
    std::int64_t out = 0;
    cpu::reduce(&out, inputs, 2, 1, DDP_I64, DDP_SUM, 1);
    EXPECT_EQ(out, (std::int64_t{1} << 61) + 3);
}

TEST(ReduceErrors, UnsupportedNamesTheType) {
    float x[4] = {};
    const void* inputs[] = {x};
    for (auto [dtype, op] :
         {std::pair{DDP_C64, DDP_MIN}, {DDP_C128, DDP_MAX}, {DDP_F32, DDP_AVG}}) {
        try {
            cpu::reduce(x, inputs, 1, 1, dtype, op, 1);
            FAIL() << dtype;
        } catch (const Error& error) {
            EXPECT_EQ(error.info().code, DDP_ERROR_UNSUPPORTED);
            EXPECT_NE(error.info().message.find(dtype_name(dtype)), std::string::npos);
        }
    }
}

TEST(InstructionSet, HasAName) {
    EXPECT_STRNE(cpu::instruction_set(), "");
}

}  // namespace
}  // namespace libddp
