// A context with a dense and a factored parameter, and integer factors whose products and means
// over 1, 2, 3 and 4 ranks are exact.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/model.h"
#include "support/ranks.h"

// The factored parameter is a kN x kM matrix; factors of fewer than kFewer rows are smaller. The
// dense one comes first.
constexpr std::size_t kN = 12, kM = 10, kFewer = 6, kHead = 5;

inline float left_value(int rank, int step, std::size_t row, std::size_t i) {
    return static_cast<float>(
        12 * ((rank + 1) * static_cast<int>(i + 1) % 7 + static_cast<int>(row) - step % 3));
}
inline float right_value(int rank, int step, std::size_t row, std::size_t j) {
    return static_cast<float>(static_cast<int>(j * (row + 1)) % 5 - 2 * rank + step);
}
inline float real_value(int rank, std::size_t k) {
    return std::sin(static_cast<float>(k + 1) * static_cast<float>(3 * rank + 1));
}

struct Factors {
    std::vector<float> left, right;
};
inline Factors factors_of(int rank, std::size_t rows, int step) {
    Factors f;
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t i = 0; i < kN; ++i) f.left.push_back(left_value(rank, step, row, i));
        for (std::size_t j = 0; j < kM; ++j) f.right.push_back(right_value(rank, step, row, j));
    }
    return f;
}
inline Factors real_factors_of(int rank, std::size_t rows) {
    Factors f;
    for (std::size_t k = 0; k < rows * kN; ++k) f.left.push_back(real_value(rank, k));
    for (std::size_t k = 0; k < rows * kM; ++k) f.right.push_back(real_value(rank + 5, k));
    return f;
}

// The gradient that factors stand for.
struct Dense {
    std::vector<double> values = std::vector<double>(kN * kM);

    void add(const Factors& f) {
        for (std::size_t row = 0; row * kN < f.left.size(); ++row)
            for (std::size_t i = 0; i < kN; ++i)
                for (std::size_t j = 0; j < kM; ++j)
                    values[i * kM + j] +=
                        static_cast<double>(f.left[row * kN + i]) * f.right[row * kM + j];
    }
    void add(int rank, std::size_t rows, int step) { add(factors_of(rank, rows, step)); }
    void add_real(int rank, std::size_t rows) { add(real_factors_of(rank, rows)); }
};

struct Rank {
    Rank(int rank_, int world_, ddp_group* group, bool view, const ddp_context_options& options,
         std::uint32_t uses)
        : rank(rank_),
          world(world_),
          borrowed(group),
          context(borrowed, options),
          own_(view ? 0 : kN * kM) {
        context.add_param<float>("head", {kHead}, nullptr, head_);
        context.add_param<float>("weight", {kN, 2, kM / 2}, nullptr,
                                 own_.empty() ? nullptr : own_.data(), DDP_PARAM_FACTORED, uses);
        context.commit();
    }

    float* gradient() { return own_.empty() ? context.grad_view<float>(1) : own_.data(); }
    std::vector<float> result() { return {gradient(), gradient() + kN * kM}; }
    std::uint64_t sent() { return context.stats().sent_bytes; }

    // A step in which `announce` does what concerns the factored parameter.
    void step(const std::function<void()>& announce) {
        context.step_begin();
        announce();
        context.grad_ready(0);
        context.finalize();
    }
    // The memory of the factors ends with the call.
    void give(const Factors& f, std::size_t rows) {
        context.factors_grad_ready(1, f.left.data(), f.right.data(), rows);
    }
    void give(std::size_t rows, int number) { give(factors_of(rank, rows, number), rows); }
    void give_real(std::size_t rows) { give(real_factors_of(rank, rows), rows); }
    void give_infinity(std::size_t rows) {
        const float infinity = std::numeric_limits<float>::infinity();
        give({std::vector<float>(rows * kN, infinity), std::vector<float>(rows * kM, infinity)},
             rows);
    }
    // The same gradient, in its place.
    void give_whole(std::size_t rows, int number) {
        Dense mine;
        mine.add(rank, rows, number);
        for (std::size_t i = 0; i < kN * kM; ++i)
            gradient()[i] = static_cast<float>(mine.values[i]);
        context.grad_ready(1);
    }

    void expect_mean(const Dense& sum) {
        for (std::size_t i = 0; i < kN * kM; ++i)
            ASSERT_EQ(gradient()[i], static_cast<float>(sum.values[i] / world)) << "element " << i;
    }
    void expect_sum(const Dense& sum) {
        for (std::size_t i = 0; i < kN * kM; ++i)
            ASSERT_EQ(gradient()[i], static_cast<float>(sum.values[i]));
    }
    void expect_near(const Dense& sum, int count) {
        for (std::size_t i = 0; i < kN * kM; ++i)
            ASSERT_NEAR(gradient()[i], sum.values[i] / count,
                        1e-5 * std::fabs(sum.values[i]) + 1e-5)
                << "element " << i;
    }

    const int rank, world;
    BorrowedGroup borrowed;
    ddp::Context context;

private:
    float head_[kHead] = {};
    std::vector<float> own_;
};

struct Ranks {
    int world;
    const char* backend;
};

class FactorsTest : public testing::TestWithParam<std::tuple<Ranks, bool>> {
protected:
    int world() const { return std::get<0>(GetParam()).world; }
    void run(const std::function<void(Rank&)>& body, std::uint32_t flags = 0,
             ddp_reduction reduction = DDP_REDUCTION_MEAN, std::uint32_t uses = 1) const {
        const auto& [ranks, view] = GetParam();
        on_ranks({ranks.world, ranks.backend}, [&, in_bucket = view](int rank, ddp_group* group) {
            auto options = ddp::Context::defaults();
            options.flags = flags;
            options.reduction = reduction;
            Rank r(rank, world(), group, in_bucket, options, uses);
            body(r);
        });
    }
};
