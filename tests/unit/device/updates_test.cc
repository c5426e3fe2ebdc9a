// Optimizers' kernels: the same bits wherever a buffer is cut; sums without rounding.
#include "kernels/updates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kernels/exact_sum.h"
#include "util/error.h"

namespace libddp::cpu {
namespace {

template <class T>
std::vector<T> numbers(std::size_t count, unsigned seed, double low = -2, double high = 2) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(low, high);
    std::vector<T> result(count);
    for (T& number : result) number = static_cast<T>(uniform(random));
    return result;
}

template <class T>
struct State {
    std::vector<T> values = numbers<T>(kCount, 1), gradients = numbers<T>(kCount, 2);
    std::vector<T> first = numbers<T>(kCount, 3), second = numbers<T>(kCount, 4, 0, 2);
    std::vector<T> out = std::vector<T>(kCount);
    static constexpr std::size_t kCount = 203;
};

template <class T>
constexpr ddp_dtype kType = sizeof(T) == 8 ? DDP_F64 : DDP_F32;

template <class T>
using Step = std::function<void(State<T>&, std::size_t begin, std::size_t count)>;

template <class T>
std::vector<Step<T>> steps() {
    static const SgdStep sgd{0.1, 0.9, 0.3, 0.97, 0.7, true};
    static const AdamStep adam{0.9, 0.99, 1e-8, 0.7, 0.5, 0.25, 0.1, 0.2};
    static const MuonStep muon{0.95, 0.7, true};
    return {[](State<T>& s, std::size_t i, std::size_t n) {
                sgd_step(&s.values[i], &s.gradients[i], &s.first[i], n, kType<T>, sgd);
            },
            [](State<T>& s, std::size_t i, std::size_t n) {
                adamw_step(&s.values[i], &s.gradients[i], &s.first[i], &s.second[i], n, kType<T>,
                           adam);
            },
            [](State<T>& s, std::size_t i, std::size_t n) {
                lamb_direction(&s.out[i], &s.values[i], &s.gradients[i], &s.first[i], &s.second[i],
                               n, kType<T>, adam);
            },
            [](State<T>& s, std::size_t i, std::size_t n) {
                muon_direction(&s.out[i], &s.gradients[i], &s.first[i], n, kType<T>, muon);
            }};
}

template <class T>
void expect_the_same_bits_wherever_it_is_cut() {
    for (const Step<T>& step : steps<T>()) {
        State<T> whole;
        step(whole, 0, State<T>::kCount);
        for (std::size_t cut = 1; cut < State<T>::kCount; cut += 3) {
            State<T> parts;
            step(parts, 0, cut);
            step(parts, cut, State<T>::kCount - cut);
            EXPECT_EQ(parts.values, whole.values) << cut;
            EXPECT_EQ(parts.first, whole.first) << cut;
            EXPECT_EQ(parts.second, whole.second) << cut;
            EXPECT_EQ(parts.out, whole.out) << cut;
        }
    }
}

TEST(Updates, TheSameBitsWhereverABufferIsCut) {
    expect_the_same_bits_wherever_it_is_cut<float>();
    expect_the_same_bits_wherever_it_is_cut<double>();
}

TEST(Updates, OtherTypesAreRefused) {
    std::uint16_t numbers[4] = {};
    EXPECT_THROW(sgd_step(numbers, numbers, nullptr, 4, DDP_BF16, {}), Error);
}

TEST(ExactSum, DoesNotRound) {
    // In f64 the small ones would be lost, or not, by their order.
    std::vector<double> addends(1000, 0x1p-60);
    addends.insert(addends.end(), {0x1p60, 1, 0x1p-1074, 3e-310, 0x1.fffffffffffffp500});
    std::mt19937 random(5);
    ExactSum first;
    for (const double number : addends) first.add(number);
    for (int i = 0; i < 20; ++i) {
        std::shuffle(addends.begin(), addends.end(), random);
        ExactSum sum;
        for (const double number : addends) sum.add(number);
        EXPECT_EQ(sum.digits(), first.digits());
        EXPECT_EQ(sum.value(), first.value());
    }
    ExactSum small;
    for (int i = 0; i < 1000; ++i) small.add(0x1p-53);
    small.add(1);
    EXPECT_EQ(small.value(), 1 + 1000 * 0x1p-53);
    EXPECT_EQ(ExactSum().value(), 0);
}

template <class T>
void expect_sums_of_parts(double low, double high) {
    const auto all = numbers<T>(10'003, 7, low, high);
    ExactSum whole;
    whole.add_squares(all.data(), all.size(), kType<T>);
    long double want = 0;
    for (const T number : all) want += static_cast<long double>(number) * number;
    EXPECT_NEAR(whole.value(), static_cast<double>(want), 1e-15 * static_cast<double>(want));
    for (const std::size_t cut : {8, 1000, 9992}) {
        ExactSum a, b;
        a.add_squares(all.data(), cut, kType<T>);
        b.add_squares(all.data() + cut, all.size() - cut, kType<T>);
        ExactSum::Digits digits = a.digits();
        for (std::size_t i = 0; i < digits.size(); ++i) digits[i] += b.digits()[i];
        ExactSum both;
        both.set_digits(digits);
        EXPECT_EQ(both.value(), whole.value()) << cut;
    }
}

TEST(ExactSum, PartsAddUp) {
    expect_sums_of_parts<float>(-1, 1);
    expect_sums_of_parts<float>(-1e30, 1e30);
    expect_sums_of_parts<double>(-1e-9, 1e9);
}

TEST(ExactSum, IsNaNWithoutAFiniteNumber) {
    for (const float number :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        const std::vector<float> all = {1, number, 2};
        ExactSum sum;
        sum.add_squares(all.data(), all.size(), DDP_F32);
        EXPECT_TRUE(std::isnan(sum.value()));
    }
}

// X X^T of the result is nearly the unit matrix.
TEST(Orthogonalize, BringsSingularValuesNearOne) {
    for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{9, 40}, {40, 9}}) {
        auto matrix = numbers<float>(rows * columns, 11);
        orthogonalize(matrix.data(), rows, columns, DDP_F32, 5, 1e-7);
        const bool tall = rows > columns;
        const std::size_t n = std::min(rows, columns), m = std::max(rows, columns);
        const auto at = [&](std::size_t i, std::size_t k) {
            return static_cast<double>(tall ? matrix[k * columns + i] : matrix[i * columns + k]);
        };
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = 0; j < n; ++j) {
                double product = 0;
                for (std::size_t k = 0; k < m; ++k) product += at(i, k) * at(j, k);
                EXPECT_NEAR(product, i == j ? 0.95 : 0, 0.55) << i << ", " << j;
            }
    }
    std::vector<double> zeros(12);
    orthogonalize(zeros.data(), 3, 4, DDP_F64, 5, 1e-7);
    EXPECT_EQ(zeros, std::vector<double>(12));
}

}  // namespace
}  // namespace libddp::cpu
