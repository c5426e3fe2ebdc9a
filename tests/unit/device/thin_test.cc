// How PowerSGD draws Q, makes matrices orthogonal, and finds what is not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/memory.h"
#include "kernels/dtype.h"
#include "kernels/low_rank.h"

namespace libddp {
namespace {

enum class Method { kGramSchmidt, kQr };
constexpr Method kMethods[] = {Method::kGramSchmidt, Method::kQr};

struct Draw {
    std::uint64_t seed;
    std::uint32_t owner, step;
};

// A thin matrix with memory of its own.
template <class T>
struct Matrix {
    static constexpr ddp_dtype kDtype = sizeof(T) == 8 ? DDP_F64 : DDP_F32;

    Matrix(std::size_t rows, std::size_t columns)
        : memory(allocate_zeroed(rows * columns * sizeof(T))), work(2 * columns) {
        thin.data = memory.get();
        thin.rows = rows;
        thin.columns = columns;
        thin.bad = &bad;
        thin.workspace = work.data();
    }
    Matrix(const Matrix&) = delete;
    Matrix& operator=(const Matrix&) = delete;

    std::size_t count() const { return thin.rows * thin.columns; }
    T* data() { return static_cast<T*>(thin.data); }
    T& at(std::size_t i, std::size_t k) { return data()[k * thin.rows + i]; }
    double dot(std::size_t a, std::size_t b) {
        double sum = 0;
        for (std::size_t i = 0; i < thin.rows; ++i)
            sum += static_cast<double>(at(i, a)) * static_cast<double>(at(i, b));
        return sum;
    }
    // The largest difference of A^T A from the identity, or from what has a zero where `gone` says.
    double fault(const std::vector<std::size_t>& gone = {}) {
        double most = 0;
        for (std::size_t a = 0; a < thin.columns; ++a)
            for (std::size_t b = 0; b < thin.columns; ++b) {
                const bool zero = a != b || std::find(gone.begin(), gone.end(), a) != gone.end();
                most = std::max(most, std::fabs(dot(a, b) - (zero ? 0 : 1)));
            }
        return most;
    }
    void draw(const Draw& draw) {
        thin.owner = draw.owner;
        cpu::thin(DDP_THIN_DRAW, {thin}, kDtype, {draw.seed, 0, draw.step});
    }
    void orthogonalize(Method method, double epsilon = 0) {
        thin.qr = method == Method::kQr;
        cpu::thin(DDP_THIN_ORTHOGONALIZE, {thin}, kDtype, {0, epsilon, 0});
    }

    std::shared_ptr<std::byte> memory;
    std::vector<double> work;
    std::uint32_t bad = 0;
    ddp_thin thin{};
};

// Known answers of the generator (Salmon et al., "kat_vectors" of Random123).
TEST(ThinDraw, IsPhilox4x32WithTenRounds) {
    const auto expected = [](std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
        const auto sum = static_cast<std::int64_t>(a + b + c + d);
        return static_cast<double>(sum - ((std::int64_t{1} << 33) - 2)) *
               (std::sqrt(3.0) / 4294967296.0);
    };
    Matrix<double> q(1, 1);
    q.draw({0, 0, 0});
    EXPECT_DOUBLE_EQ(q.at(0, 0), expected(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
}

TEST(ThinDraw, HasMeanZeroAndVarianceOne) {
    Matrix<float> q(20000, 4);
    q.draw({7, 3, 9});
    for (std::size_t k = 0; k < 4; ++k) {
        double sum = 0, fourth = 0;
        for (std::size_t i = 0; i < 20000; ++i) {
            const double x = static_cast<double>(q.at(i, k));
            sum += x;
            fourth += x * x * x * x;
        }
        EXPECT_NEAR(sum / 20000, 0, 0.03);
        EXPECT_NEAR(q.dot(k, k) / 20000, 1, 0.03);
        EXPECT_NEAR(fourth / 20000, 2.7, 0.15) << "of four uniform numbers; 3 for a normal one";
        for (std::size_t other = 0; other < k; ++other)
            EXPECT_NEAR(q.dot(k, other) / 20000, 0, 0.03);
    }
}

TEST(ThinDraw, EveryNumberOfTheDrawCounts) {
    Matrix<float> first(50, 2);
    first.draw({1, 2, 3});
    for (const Draw& other :
         {Draw{2, 2, 3}, Draw{1 + (std::uint64_t{1} << 32), 2, 3}, Draw{1, 3, 3}, Draw{1, 2, 4}}) {
        Matrix<float> q(50, 2);
        q.draw(other);
        EXPECT_NE(std::memcmp(q.thin.data, first.thin.data, 100 * sizeof(float)), 0);
    }
}

TEST(ThinDraw, OnlyColumnsOfZerosAreDrawnAnew) {
    Matrix<float> all(50, 3), q(50, 3);
    all.draw({1, 2, 3});
    q.at(20, 0) = 1;
    q.at(49, 2) = -1;
    q.draw({1, 2, 3});
    for (std::size_t i = 0; i < 50; ++i) {
        EXPECT_EQ(q.at(i, 0), i == 20 ? 1 : 0);
        EXPECT_EQ(q.at(i, 1), all.at(i, 1));
        EXPECT_EQ(q.at(i, 2), i == 49 ? -1 : 0);
    }
}

template <class T>
void expect_orthogonal(double tolerance) {
    for (const Method method : kMethods)
        for (const std::size_t columns : {1, 2, 3, 8, 33})
            for (const double size : {1.0, 1e-30, 1e30}) {
                Matrix<T> a(40, columns), before(40, columns);
                a.draw({5, 6, 7});
                for (std::size_t i = 0; i < a.count(); ++i) a.data()[i] *= static_cast<T>(size);
                std::memcpy(before.thin.data, a.thin.data, a.count() * sizeof(T));
                a.orthogonalize(method);
                EXPECT_LT(a.fault(), tolerance) << columns << " columns of size " << size;
                // The space is the same: what the columns were is a combination of what they are.
                for (std::size_t k = 0; k < columns; ++k) {
                    std::vector<double> rest(40);
                    for (std::size_t i = 0; i < 40; ++i)
                        rest[i] = static_cast<double>(before.at(i, k)) / size;
                    for (std::size_t other = 0; other < columns; ++other) {
                        double part = 0;
                        for (std::size_t i = 0; i < 40; ++i)
                            part += static_cast<double>(a.at(i, other)) *
                                    static_cast<double>(before.at(i, k)) / size;
                        for (std::size_t i = 0; i < 40; ++i)
                            rest[i] -= part * static_cast<double>(a.at(i, other));
                    }
                    for (const double x : rest) EXPECT_NEAR(x, 0, 10 * tolerance);
                }
            }
}

TEST(ThinOrthogonalize, GivesUnitColumnsOfTheSameSpace) {
    expect_orthogonal<float>(2e-5);
    expect_orthogonal<double>(1e-13);
}

TEST(ThinOrthogonalize, ZerosStayZeroOrBecomeUnitColumns) {
    Matrix<float> zero(10, 3);
    zero.orthogonalize(Method::kGramSchmidt);
    EXPECT_EQ(zero.fault({0, 1, 2}), 0);
    zero.orthogonalize(Method::kQr);
    EXPECT_LT(zero.fault(), 1e-6);
}

// The second column is a multiple of the first, but for what rounding makes of it.
TEST(ThinOrthogonalize, AColumnThatDependsOnAnotherIsNotInventedFromRoundingErrors) {
    for (const float factor : {2.0f, 1.1f, -3.3f}) {
        Matrix<float> a(200, 3), q(200, 3);
        a.draw({5, 6, 7});
        for (std::size_t i = 0; i < 200; ++i) a.at(i, 1) = factor * a.at(i, 0);
        std::memcpy(q.thin.data, a.thin.data, a.count() * sizeof(float));
        a.orthogonalize(Method::kGramSchmidt);
        EXPECT_LT(a.fault({1}), 1e-5);
        q.orthogonalize(Method::kQr);
        EXPECT_LT(q.fault(), 1e-5);
    }
}

// Almost dependent: one pass would leave columns that are far from orthogonal.
TEST(ThinOrthogonalize, GramSchmidtIsAsGoodAsQr) {
    Matrix<float> a(500, 2);
    a.draw({5, 6, 7});
    for (std::size_t i = 0; i < 500; ++i) a.at(i, 1) = a.at(i, 0) + 1e-5f * a.at(i, 1);
    a.orthogonalize(Method::kGramSchmidt);
    EXPECT_LT(a.fault(), 1e-5);
}

TEST(ThinOrthogonalize, EpsilonIsAddedToTheLength) {
    Matrix<double> a(4, 1);
    a.at(2, 0) = 3;
    a.orthogonalize(Method::kGramSchmidt, 1);
    EXPECT_EQ(a.at(2, 0), 0.75);
}

template <class T>
void expect_checked(T bad_value) {
    Matrix<T> a(5, 2), kept(5, 2);
    a.thin.kept = kept.thin.data;
    const auto run = [&](ddp_thin_op op) { cpu::thin(op, {a.thin}, Matrix<T>::kDtype, {}); };
    run(DDP_THIN_KEEP);
    EXPECT_EQ(kept.at(4, 1), 0) << "zeros are not kept";
    a.at(4, 1) = 3;
    run(DDP_THIN_CHECK);
    EXPECT_EQ(a.bad, 0u);
    run(DDP_THIN_KEEP);
    EXPECT_EQ(kept.at(4, 1), 3);
    a.at(3, 1) = bad_value;
    run(DDP_THIN_CHECK);
    EXPECT_EQ(a.bad, 1u);
    run(DDP_THIN_KEEP);
    EXPECT_EQ(kept.at(3, 1), 0);
    a.orthogonalize(Method::kQr);
    EXPECT_EQ(a.at(4, 1), 3) << "what is bad is left alone";
    a.at(3, 1) = 0;
    run(DDP_THIN_CHECK);
    EXPECT_EQ(a.bad, 1u) << "a flag stays";
}

TEST(ThinCheck, FindsWhatIsNotFiniteAndKeepsWhatIs) {
    expect_checked<float>(std::numeric_limits<float>::infinity());
    expect_checked<double>(std::nan(""));
}

TEST(ThinCheck, PartsThatAreNotFiniteAreLeftOut) {
    float f[] = {1, 2, std::numeric_limits<float>::infinity()};
    double d[] = {1, 2, std::nan("")};
    std::uint16_t h[] = {0x3c00, 0x7bff, 0xfc00}, b[] = {0x3f80, 0x7f7f, 0xffc0};
    const std::pair<ddp_dtype, void*> all[] = {
        {DDP_F32, f}, {DDP_F64, d}, {DDP_F16, h}, {DDP_BF16, b}};
    for (const auto& [dtype, values] : all) {
        double marks[2] = {};
        std::uint32_t doubt = 0;
        const std::vector<ddp_doubt> parts{{values, 2, &marks[0]}, {values, 3, &marks[1]}};
        cpu::leave_out(parts, dtype, &doubt);
        EXPECT_EQ(marks[1], 0) << "nobody doubts";
        doubt = 1;
        cpu::leave_out({parts[0]}, dtype, &doubt);
        EXPECT_EQ(marks[0], 0) << "finite";
        cpu::leave_out(parts, dtype, &doubt);
        for (std::size_t i = 0; i < 3 * dtype_size(dtype); ++i)
            EXPECT_EQ(static_cast<std::uint8_t*>(values)[i], 0);
        float mark = 0;
        std::memcpy(&mark, &marks[1], sizeof mark);
        EXPECT_TRUE(std::isnan(dtype == DDP_F64 ? marks[1] : static_cast<double>(mark)));
    }
}

}  // namespace
}  // namespace libddp
