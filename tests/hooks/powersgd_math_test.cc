// How PowerSGD draws Q, makes matrices orthogonal, and checks a state that it is given.
#include "hooks/powersgd_math.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/memory.h"
#include "hooks/powersgd_state.h"
#include "util/error.h"

using testing::HasSubstr;

namespace libddp::powersgd {
namespace {

// A thin matrix with memory of its own.
template <class T>
struct Matrix {
    Matrix(std::size_t rows, std::size_t columns)
        : memory(allocate_zeroed(rows * columns * sizeof(T))), workspace(allocate_zeroed(rows * columns * sizeof(T))) {
        thin = {memory.get(), sizeof(T) == 8 ? DDP_F64 : DDP_F32, rows, columns};
    }
    T& at(std::size_t i, std::size_t k) { return static_cast<T*>(thin.data)[k * thin.rows + i]; }
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
    void orthogonalize(Method method, double epsilon = 0) {
        powersgd::orthogonalize(thin, method, epsilon, workspace.get());
    }

    std::shared_ptr<std::byte> memory, workspace;
    Thin thin;
};

constexpr Method kMethods[] = {Method::kGramSchmidt, Method::kQr};

// Known answers of the generator (Salmon et al., "kat_vectors" of Random123).
TEST(PowerSgdDraw, IsPhilox4x32WithTenRounds) {
    const auto expected = [](std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
        const auto sum = static_cast<std::int64_t>(a + b + c + d);
        return static_cast<double>(sum - ((std::int64_t{1} << 33) - 2)) * (std::sqrt(3.0) / 4294967296.0);
    };
    Matrix<double> q(1, 1);
    draw_columns(q.thin, {0, 0, 0});
    EXPECT_DOUBLE_EQ(q.at(0, 0), expected(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
}

TEST(PowerSgdDraw, HasMeanZeroAndVarianceOne) {
    Matrix<float> q(20000, 4);
    draw_columns(q.thin, {7, 3, 9});
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
        for (std::size_t other = 0; other < k; ++other) EXPECT_NEAR(q.dot(k, other) / 20000, 0, 0.03);
    }
}

TEST(PowerSgdDraw, EveryNumberOfTheDrawCounts) {
    Matrix<float> first(50, 2);
    draw_columns(first.thin, {1, 2, 3});
    for (const Draw& other : {Draw{2, 2, 3}, Draw{1 + (std::uint64_t{1} << 32), 2, 3}, Draw{1, 3, 3}, Draw{1, 2, 4}}) {
        Matrix<float> q(50, 2);
        draw_columns(q.thin, other);
        EXPECT_NE(std::memcmp(q.thin.data, first.thin.data, 100 * sizeof(float)), 0);
    }
}

TEST(PowerSgdDraw, OnlyColumnsOfZerosAreDrawnAnew) {
    Matrix<float> all(50, 3), q(50, 3);
    draw_columns(all.thin, {1, 2, 3});
    q.at(20, 0) = 1;
    q.at(49, 2) = -1;
    draw_zero_columns(q.thin, {1, 2, 3});
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
                draw_columns(a.thin, {5, 6, 7});
                for (std::size_t i = 0; i < a.thin.count(); ++i)
                    static_cast<T*>(a.thin.data)[i] *= static_cast<T>(size);
                std::memcpy(before.thin.data, a.thin.data, a.thin.count() * sizeof(T));
                a.orthogonalize(method);
                EXPECT_LT(a.fault(), tolerance) << columns << " columns of size " << size;
                // The space is the same: what the columns were is a combination of what they are.
                for (std::size_t k = 0; k < columns; ++k) {
                    std::vector<double> rest(40);
                    for (std::size_t i = 0; i < 40; ++i) rest[i] = static_cast<double>(before.at(i, k)) / size;
                    for (std::size_t other = 0; other < columns; ++other) {
                        double part = 0;
                        for (std::size_t i = 0; i < 40; ++i)
                            part += static_cast<double>(a.at(i, other)) * static_cast<double>(before.at(i, k)) / size;
                        for (std::size_t i = 0; i < 40; ++i) rest[i] -= part * static_cast<double>(a.at(i, other));
                    }
                    for (const double x : rest) EXPECT_NEAR(x, 0, 10 * tolerance);
                }
            }
}

TEST(PowerSgdOrthogonalize, GivesUnitColumnsOfTheSameSpace) {
    expect_orthogonal<float>(2e-5);
    expect_orthogonal<double>(1e-13);
}

TEST(PowerSgdOrthogonalize, ZerosStayZeroOrBecomeUnitColumns) {
    Matrix<float> zero(10, 3);
    zero.orthogonalize(Method::kGramSchmidt);
    EXPECT_EQ(zero.fault({0, 1, 2}), 0);
    zero.orthogonalize(Method::kQr);
    EXPECT_LT(zero.fault(), 1e-6);
}

// The second column is a multiple of the first, but for what rounding makes of it.
TEST(PowerSgdOrthogonalize, AColumnThatDependsOnAnotherIsNotInventedFromRoundingErrors) {
    for (const float factor : {2.0f, 1.1f, -3.3f}) {
        Matrix<float> a(200, 3), q(200, 3);
        draw_columns(a.thin, {5, 6, 7});
        for (std::size_t i = 0; i < 200; ++i) a.at(i, 1) = factor * a.at(i, 0);
        std::memcpy(q.thin.data, a.thin.data, a.thin.count() * sizeof(float));
        a.orthogonalize(Method::kGramSchmidt);
        EXPECT_LT(a.fault({1}), 1e-5);
        q.orthogonalize(Method::kQr);
        EXPECT_LT(q.fault(), 1e-5);
    }
}

// Almost dependent: one pass would leave columns that are far from orthogonal.
TEST(PowerSgdOrthogonalize, GramSchmidtIsAsGoodAsQr) {
    Matrix<float> a(500, 2);
    draw_columns(a.thin, {5, 6, 7});
    for (std::size_t i = 0; i < 500; ++i) a.at(i, 1) = a.at(i, 0) + 1e-5f * a.at(i, 1);
    a.orthogonalize(Method::kGramSchmidt);
    EXPECT_LT(a.fault(), 1e-5);
}

TEST(PowerSgdOrthogonalize, EpsilonIsAddedToTheLength) {
    Matrix<double> a(4, 1);
    a.at(2, 0) = 3;
    a.orthogonalize(Method::kGramSchmidt, 1);
    EXPECT_EQ(a.at(2, 0), 0.75);
}

TEST(PowerSgdFinite, SeesEveryTypesInfinitiesAndNans) {
    const float f[] = {1, 2, std::numeric_limits<float>::infinity()};
    const double d[] = {1, 2, std::nan("")};
    const std::uint16_t h[] = {0x3c00, 0x7bff, 0xfc00}, b[] = {0x3f80, 0x7f7f, 0xffc0};
    const std::pair<ddp_dtype, const void*> all[] = {{DDP_F32, f}, {DDP_F64, d}, {DDP_F16, h}, {DDP_BF16, b}};
    for (const auto& [dtype, values] : all) {
        EXPECT_TRUE(all_finite(values, dtype, 2));
        EXPECT_FALSE(all_finite(values, dtype, 3));
        std::uint64_t filled[3] = {};
        fill_nan(filled, dtype, 1);
        EXPECT_FALSE(all_finite(filled, dtype, 1));
        EXPECT_TRUE(all_finite(reinterpret_cast<const char*>(filled) + 8, dtype, 1)) << "one element was to be filled";
    }
}

// A state with one parameter of 6 x 4, of rank 2.
class PowerSgdLoad : public testing::Test {
protected:
    PowerSgdLoad() {
        good.numbers = {{"steps", 5}, {"rank", 2}};
        good.arrays.push_back({0, "error", DDP_F32, {24}, false, bytes(), 96});
        good.arrays.push_back({0, "q", DDP_F32, {2, 4}, true, bytes(), 32});
        state.load(good);
    }
    const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(numbers); }
    void expect_refused(const char* why, const std::function<void(HookState&)>& change) {
        HookState bad = good;
        change(bad);
        HookState before, after;
        state.save(before);
        try {
            state.load(bad);
            ADD_FAILURE() << "loaded, although: " << why;
        } catch (const Error& e) {
            EXPECT_EQ(e.info().code, DDP_ERROR_INVALID_ARGUMENT);
            EXPECT_THAT(e.what(), HasSubstr(why));
            EXPECT_THAT(e.what(), HasSubstr("powersgd: "));
        }
        state.save(after);
        EXPECT_EQ(after.numbers, before.numbers);
        ASSERT_EQ(after.arrays.size(), before.arrays.size());
        for (std::size_t i = 0; i < after.arrays.size(); ++i)
            EXPECT_EQ(after.arrays[i].data, before.arrays[i].data) << "nothing was loaded";
    }

    const float numbers[64] = {1, 2, 3};
    HookState good;
    State state{2, false, "powersgd"};
};

TEST_F(PowerSgdLoad, GivesBackWhatWasSaved) {
    HookState saved;
    state.save(saved);
    EXPECT_EQ(saved.numbers, good.numbers);
    ASSERT_EQ(saved.arrays.size(), 2u);
    for (const auto& array : good.arrays) {
        const auto found = std::find_if(saved.arrays.begin(), saved.arrays.end(),
                                        [&](const auto& other) { return other.key == array.key; });
        ASSERT_NE(found, saved.arrays.end());
        EXPECT_EQ(found->shape, array.shape);
        EXPECT_EQ(found->shared, array.key == "q");
        EXPECT_EQ(std::memcmp(found->data, array.data, array.bytes), 0);
    }
    state.note_step(0);
    EXPECT_EQ(state.step(), 5) << "a resumed context numbers its steps from 0";
}

TEST_F(PowerSgdLoad, RefusesWhatDoesNotFit) {
    expect_refused("'steps'", [](HookState& s) { s.numbers.erase("steps"); });
    expect_refused("'steps'", [](HookState& s) { s.numbers["steps"] = -1; });
    expect_refused("rank 3", [](HookState& s) { s.numbers["rank"] = 3; });
    expect_refused("'residual'", [](HookState& s) { s.arrays[0].key = "residual"; });
    expect_refused("'q0'", [](HookState& s) { s.arrays[1].key = "q0", s.arrays[1].param = -1; });
    expect_refused("of f16", [](HookState& s) { s.arrays[0].dtype = DDP_F16; });
    expect_refused("6 x 4", [](HookState& s) { s.arrays[0].shape = {6, 4}; });
    expect_refused("25 elements", [](HookState& s) { s.arrays[0].shape = {25}, s.arrays[0].bytes = 100; });
    expect_refused("3 x 4", [](HookState& s) { s.arrays[1].shape = {3, 4}, s.arrays[1].bytes = 48; });
    expect_refused("1 x 4", [](HookState& s) { s.arrays[1].shape = {1, 4}, s.arrays[1].bytes = 16; });
    expect_refused("2 x 6", [](HookState& s) { s.arrays[1].shape = {2, 6}, s.arrays[1].bytes = 48; });
    expect_refused("2 x 1", [](HookState& s) { s.arrays[1].shape = {2, 1}, s.arrays[1].bytes = 8; });
}

TEST_F(PowerSgdLoad, ChecksAQAgainstItsErrorInAHookThatIsNew) {
    State fresh{2, false, "powersgd"};
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{2, 5}, {1, 4}}) {
        HookState bad = good;
        bad.arrays[1].shape = shape;
        bad.arrays[1].bytes = static_cast<std::size_t>(shape[0] * shape[1]) * 4;
        EXPECT_THROW(fresh.load(bad), Error);
    }
    HookState shared = good;
    shared.arrays.erase(shared.arrays.begin());
    fresh.load(shared);
    EXPECT_EQ(fresh.error(0, DDP_F32, 24).count(), 24u) << "a missing error is zero";
    EXPECT_THROW(fresh.error(0, DDP_F32, 25), Error);
    EXPECT_EQ(fresh.q(0).columns, 2u);
}

TEST(PowerSgdLoadBatched, KnowsBucketsByNumber) {
    const float numbers[64] = {};
    const auto* data = reinterpret_cast<const std::byte*>(numbers);
    State state{3, true, "batched_powersgd"};
    HookState saved;
    saved.numbers = {{"steps", 5}, {"rank", 3}};
    saved.arrays.push_back({-1, "q12", DDP_F32, {3, 6}, true, data, 72});
    state.load(saved);
    EXPECT_EQ(state.q(12).rows, 6u);
    for (const char* key : {"q", "qx", "q-1", "q99999999999"}) {
        saved.arrays[0].key = key;
        EXPECT_THROW(state.load(saved), Error) << key;
    }
}

}  // namespace
}  // namespace libddp::powersgd
