// norm_terms, against sums of long double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"

namespace libddp {
namespace norm_test {

using cpu::NormKind;

constexpr ddp_dtype kTypes[] = {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_C64, DDP_C128};
constexpr NormKind kKinds[] = {NormKind::kMagnitudes, NormKind::kSquares, NormKind::kLargest};

// Numbers of a type, and the same as f64: of a complex number two.
struct Numbers {
    Numbers(ddp_dtype type, std::size_t count)
        : dtype(type), as_f64(count * (is_complex(type) ? 2 : 1)), bytes(count * dtype_size(type)) {
        for (std::size_t i = 0; i < as_f64.size(); ++i)
            as_f64[i] = std::sin(static_cast<double>(i) * 1.7) * (i % 3 == 0 ? 1e-3 : 100);
        round();
    }
    void round() {
        const std::size_t count = bytes.size() / dtype_size(dtype);
        const ddp_dtype wide = is_complex(dtype) ? DDP_C128 : DDP_F64;
        if (dtype == wide) {
            std::memcpy(bytes.data(), as_f64.data(), bytes.size());
            return;
        }
        cpu::convert(bytes.data(), dtype, as_f64.data(), wide, count);
        cpu::convert(as_f64.data(), wide, bytes.data(), dtype, count);
    }
    std::size_t count() const { return bytes.size() / dtype_size(dtype); }
    double terms(NormKind kind) const {
        return cpu::norm_terms(bytes.data(), count(), dtype, kind);
    }
    long double want(NormKind kind) const {
        long double result = 0;
        for (std::size_t i = 0; i < count(); ++i) {
            const std::size_t each = is_complex(dtype) ? 2 : 1;
            const long double re = as_f64[i * each], im = each == 2 ? as_f64[i * each + 1] : 0;
            const long double square = re * re + im * im;
            if (kind == NormKind::kSquares) result += square;
            if (kind == NormKind::kMagnitudes) result += std::sqrt(square);
            if (kind == NormKind::kLargest) result = std::max(result, std::sqrt(square));
        }
        return result;
    }

    ddp_dtype dtype;
    std::vector<double> as_f64;
    std::vector<std::byte> bytes;
};

TEST(Norm, IsThatOfExactSums) {
    for (const ddp_dtype dtype : kTypes)
        for (const std::size_t count : {0, 1, 2, 7, 15, 16, 17, 31, 64, 1000, 20'003})
            for (const NormKind kind : kKinds) {
                const Numbers numbers(dtype, count);
                const long double want = numbers.want(kind);
                EXPECT_NEAR(numbers.terms(kind), static_cast<double>(want),
                            static_cast<double>(want) * 1e-13)
                    << dtype_name(dtype) << " " << count << " " << static_cast<int>(kind);
            }
}

double added_in_halves(std::vector<double> sums) {
    for (std::size_t half = sums.size() / 2; half > 0; half /= 2)
        for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sums[0];
}

// In the order of norm_order.h, and so on every machine.
TEST(Norm, HasTheBitsOfItsOrder) {
    for (const std::size_t count : {1003, 1024, 1025, 100'000, 1'000'003}) {
        const Numbers numbers(DDP_F64, count);
        std::vector<double> totals(256);
        for (std::size_t first = 0; first < count; first += 1024) {
            std::vector<double> sums(16);
            for (std::size_t i = first; i < std::min(first + 1024, count); ++i)
                sums[i % 16] += numbers.as_f64[i] * numbers.as_f64[i];
            totals[first / 1024 % 256] += added_in_halves(sums);
        }
        EXPECT_EQ(numbers.terms(NormKind::kSquares), added_in_halves(totals)) << count;
    }
}

TEST(Norm, NanAndInfinity) {
    for (const ddp_dtype dtype : kTypes)
        for (const NormKind kind : kKinds)
            for (const std::size_t count : {1, 16, 100})
                for (const std::size_t at : {std::size_t{0}, count / 2, count - 1})
                    for (const double sign : {1.0, -1.0}) {
                        Numbers numbers(dtype, count);
                        numbers.as_f64[at] = sign * std::numeric_limits<double>::infinity();
                        numbers.round();
                        EXPECT_EQ(numbers.terms(kind), std::numeric_limits<double>::infinity());
                        numbers.as_f64.front() =
                            std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
                        numbers.round();
                        EXPECT_TRUE(std::isnan(numbers.terms(kind))) << dtype_name(dtype);
                        EXPECT_FALSE(std::signbit(numbers.terms(kind)));
                    }
    EXPECT_EQ(cpu::add_norm_terms(1, 2, NormKind::kSquares), 3);
    EXPECT_EQ(cpu::add_norm_terms(1, 2, NormKind::kLargest), 2);
    EXPECT_TRUE(std::isnan(cpu::add_norm_terms(NAN, 2, NormKind::kLargest)));
    EXPECT_TRUE(std::isnan(cpu::add_norm_terms(2, NAN, NormKind::kLargest)));
}

// Squares of f32 and of bf16 do not overflow, and small ones are not lost.
TEST(Norm, LargeAndSmallNumbers) {
    const std::vector<float> large(100, 3e38f), small(100, 1e-40f);
    EXPECT_NEAR(cpu::norm_terms(large.data(), 100, DDP_F32, NormKind::kSquares) / 9e78, 1, 1e-6);
    EXPECT_NEAR(cpu::norm_terms(small.data(), 100, DDP_F32, NormKind::kSquares) / 1e-78, 1, 1e-4);
}

}  // namespace norm_test
}  // namespace libddp
