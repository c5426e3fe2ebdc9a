// Sums of outer products: exactly those of the definition, in its order, whatever the shape.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/arithmetic.h"
#include "unit/device/reference.h"
#include "util/error.h"

using namespace libddp;

namespace {

template <class T>
std::vector<T> values(std::size_t count, unsigned seed) {
    std::vector<T> v(count);
    for (std::size_t i = 0; i < count; ++i)
        v[i] = static_cast<T>(std::sin(static_cast<double>((i + 1) * (seed + 3))) *
                              std::exp2(static_cast<int>(i % 9) - 4));
    return v;
}

// One operation after another, each rounded: volatile keeps the compiler from fusing or reordering
// them.
template <class T>
std::vector<T> expected(std::vector<T> out, const std::vector<T>& left, const std::vector<T>& right,
                        std::size_t rows, std::size_t n, std::size_t m, bool add, T scale) {
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < m; ++j) {
            volatile T sum = add ? out[i * m + j] : T{0};
            for (std::size_t k = 0; k < rows; ++k) {
                volatile T product = left[k * n + i] * right[k * m + j];
                sum = sum + product;
            }
            out[i * m + j] = sum * scale;
        }
    return out;
}

template <class T>
class Outer : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Outer, Types);

TYPED_TEST(Outer, HasTheBitsOfTheDefinition) {
    using T = TypeParam;
    for (std::size_t rows : {0, 1, 2, 127, 128, 129, 300})
        for (std::size_t n : {1, 3, 4, 5, 67, 258})
            for (std::size_t m : {1, 2, 15, 16, 33, 70}) {
                const auto left = values<T>(rows * n, 1), right = values<T>(rows * m, 2);
                for (bool add : {false, true})
                    for (double scale : {1.0, 1.0 / 3}) {
                        auto out = values<T>(n * m, 3);
                        const auto correct =
                            expected(out, left, right, rows, n, m, add, static_cast<T>(scale));
                        cpu::outer_products(out.data(), left.data(), right.data(), rows, n, m,
                                            reference::kDtype<T>, add, scale);
                        ASSERT_EQ(out, correct)
                            << rows << " rows of " << n << " and " << m << (add ? ", added" : "");
                    }
            }
}

// Elements before and behind the matrix, and infinities in one that is not theirs.
TYPED_TEST(Outer, KeepsToItsMemory) {
    using T = TypeParam;
    constexpr std::size_t rows = 5, n = 6, m = 7;
    for (std::size_t shift : {0, 1, 2, 3}) {
        std::vector<T> out(n * m + 8, 1);
        const auto left = values<T>(rows * n + shift, 1), right = values<T>(rows * m + shift, 2);
        cpu::outer_products(out.data() + shift, left.data() + shift, right.data() + shift, rows, n,
                            m, reference::kDtype<T>, true, 1);
        for (std::size_t i = 0; i < out.size(); ++i)
            if (i < shift || i >= shift + n * m) {
                EXPECT_EQ(out[i], 1) << i;
            }
    }
    std::vector<T> left(n), right(m), out(n * m);
    left[2] = std::numeric_limits<T>::infinity();
    right[3] = 2;
    cpu::outer_products(out.data(), left.data(), right.data(), 1, n, m, reference::kDtype<T>, false,
                        1);
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < m; ++j) {
            if (i != 2)
                EXPECT_EQ(out[i * m + j], 0);
            else if (j == 3)
                EXPECT_EQ(out[i * m + j], left[2]);
            else
                EXPECT_TRUE(std::isnan(out[i * m + j]));
        }
}

TEST(OuterTypes, OthersAreRefused) {
    float memory = 0;
    for (ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_I32, DDP_C64})
        EXPECT_THROW(cpu::outer_products(&memory, &memory, &memory, 1, 1, 1, dtype, false, 1),
                     Error);
}

}  // namespace
