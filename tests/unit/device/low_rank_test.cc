// The thin products of PowerSGD against plain sums in double, on every instruction set.
#include "kernels/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "unit/device/reference.h"
#include "util/error.h"

namespace libddp {
namespace {

using Numbers = std::vector<double>;
using Bytes = std::vector<std::byte>;

Numbers waves(std::size_t count, double seed) {
    Numbers values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = std::sin(seed * (static_cast<double>(i % 997) + 1.0));
    return values;
}

Bytes stored(const Numbers& values, ddp_dtype dtype) {
    Bytes bytes(values.size() * dtype_size(dtype));
    cpu::convert(bytes.data(), dtype, values.data(), DDP_F64, values.size());
    return bytes;
}

Numbers read(const Bytes& bytes, ddp_dtype dtype) {
    Numbers values(bytes.size() / dtype_size(dtype));
    cpu::convert(values.data(), DDP_F64, bytes.data(), dtype, values.size());
    return values;
}

struct Case {
    ddp_dtype dtype;
    std::size_t rows, columns, rank;
    bool has_error;

    ddp_dtype compute() const { return dtype == DDP_F64 ? DDP_F64 : DDP_F32; }
    double tolerance() const { return compute() == DDP_F64 ? 1e-12 : 2e-5; }
    std::size_t count() const { return rows * columns; }
};

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const ddp_dtype dtype : {DDP_F16, DDP_BF16, DDP_F32, DDP_F64})
        for (const bool has_error : {false, true})
            for (const auto& [rows, columns] :
                 {std::pair<std::size_t, std::size_t>{1, 1}, {7, 5}, {9, 64}, {70, 133}, {131, 33}})
                for (const std::size_t rank : {1, 2, 3, 4, 7})
                    all.push_back({dtype, rows, columns, rank, has_error});
    // More columns than one block of them, and a piece of Q narrower than M.
    all.push_back({DDP_F32, 70, 133, 67, true});
    all.push_back({DDP_F64, 5, 3000, 3, true});
    return all;
}

// M, P and Q of a case, as stored and as numbers. The thin matrices have gaps between their
// columns.
struct Operands {
    explicit Operands(const Case& c)
        : gradient(stored(waves(c.count(), 0.7), c.dtype)),
          error(stored(waves(c.has_error ? c.count() : 0, 0.3), c.compute())),
          p_stride(c.rows + 3),
          q_stride(c.columns + 1),
          p(stored(waves(p_stride * c.rank, 1.1), c.compute())),
          q(stored(waves(q_stride * c.rank, 1.7), c.compute())),
          m(read(gradient, c.dtype)) {
        const Numbers kept = read(error, c.compute());
        for (std::size_t i = 0; i < kept.size(); ++i) m[i] += kept[i];
    }
    cpu::LowRankMatrix matrix(const Case& c) {
        return {gradient.data(), c.dtype, c.has_error ? error.data() : nullptr, c.rows, c.columns};
    }

    Bytes gradient, error;
    std::size_t p_stride, q_stride;
    Bytes p, q;
    Numbers m;
};

void expect_near(double got, double want, double size, const Case& c) {
    EXPECT_NEAR(got, want, c.tolerance() * size)
        << dtype_name(c.dtype) << " " << c.rows << " x " << c.columns << " rank " << c.rank;
}

TEST(LowRank, Project) {
    reference::for_each_target([](const char*) {
        for (const Case& c : cases()) {
            Operands o(c);
            cpu::low_rank_project(o.matrix(c), {o.q.data(), o.q_stride}, {o.p.data(), o.p_stride},
                                  c.rank);
            const Numbers p = read(o.p, c.compute()), q = read(o.q, c.compute());
            for (std::size_t k = 0; k < c.rank; ++k)
                for (std::size_t i = 0; i < c.rows; ++i) {
                    double sum = 0;
                    for (std::size_t j = 0; j < c.columns; ++j)
                        sum += o.m[i * c.columns + j] * q[k * o.q_stride + j];
                    expect_near(p[k * o.p_stride + i], sum, 1 + static_cast<double>(c.columns), c);
                }
        }
    });
}

TEST(LowRank, ProjectBackAdds) {
    reference::for_each_target([](const char*) {
        for (const Case& c : cases()) {
            Operands o(c);
            const Numbers before = read(o.q, c.compute()), p = read(o.p, c.compute());
            cpu::low_rank_project_back(o.matrix(c), {o.p.data(), o.p_stride},
                                       {o.q.data(), o.q_stride}, c.rank);
            const Numbers q = read(o.q, c.compute());
            for (std::size_t k = 0; k < c.rank; ++k)
                for (std::size_t j = 0; j < c.columns; ++j) {
                    double sum = before[k * o.q_stride + j];
                    for (std::size_t i = 0; i < c.rows; ++i)
                        sum += o.m[i * c.columns + j] * p[k * o.p_stride + i];
                    expect_near(q[k * o.q_stride + j], sum, 1 + static_cast<double>(c.rows), c);
                }
        }
    });
}

// The results of one target, which must be those of every other.
struct Restored {
    std::vector<Bytes> all;
};

TEST(LowRank, RestoreHasTheSameBitsOnEveryTarget) {
    std::vector<Restored> targets;
    reference::for_each_target([&](const char*) {
        Restored restored;
        for (const Case& c : cases()) {
            Operands o(c);
            Bytes own = stored(waves(o.q_stride * c.rank, 2.3), c.compute());
            const Numbers p = read(o.p, c.compute()), q = read(o.q, c.compute()),
                          own_q = read(own, c.compute());
            cpu::low_rank_restore(o.matrix(c), {o.p.data(), o.p_stride}, {o.q.data(), o.q_stride},
                                  {own.data(), o.q_stride}, c.rank);
            const Numbers result = read(o.gradient, c.dtype), error = read(o.error, c.compute());
            const double rounding = c.dtype == DDP_F16 ? 1e-3 : c.dtype == DDP_BF16 ? 1e-2 : 0;
            for (std::size_t i = 0; i < c.rows; ++i)
                for (std::size_t j = 0; j < c.columns; ++j) {
                    double sum = 0, own_sum = 0;
                    for (std::size_t k = 0; k < c.rank; ++k) {
                        sum += p[k * o.p_stride + i] * q[k * o.q_stride + j];
                        own_sum += p[k * o.p_stride + i] * own_q[k * o.q_stride + j];
                    }
                    const std::size_t at = i * c.columns + j;
                    EXPECT_NEAR(result[at], sum,
                                (c.tolerance() + rounding) * (1 + static_cast<double>(c.rank)));
                    if (c.has_error)
                        expect_near(error[at], o.m[at] - own_sum, 2 + static_cast<double>(c.rank),
                                    c);
                }
            restored.all.push_back(o.gradient);
            restored.all.push_back(o.error);
        }
        targets.push_back(std::move(restored));
    });
    for (const Restored& target : targets) EXPECT_EQ(target.all, targets.front().all);
}

TEST(LowRank, ARowThatIsNotFiniteIsSeenInP) {
    reference::for_each_target([](const char*) {
        for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL})
            for (const std::size_t column : {std::size_t{0}, std::size_t{31}, std::size_t{36}}) {
                const Case c{DDP_F32, 6, 37, 2, true};
                Operands o(c);
                Numbers gradient = read(o.gradient, c.dtype);
                gradient[3 * c.columns + column] = bad;
                o.gradient = stored(gradient, c.dtype);
                // Also where Q is zero.
                std::fill(o.q.begin(), o.q.end(), std::byte{0});
                cpu::low_rank_project(o.matrix(c), {o.q.data(), o.q_stride},
                                      {o.p.data(), o.p_stride}, c.rank);
                const Numbers p = read(o.p, c.compute());
                for (std::size_t i = 0; i < c.rows; ++i)
                    EXPECT_EQ(std::isfinite(p[i]), i != 3) << i;
            }
    });
}

TEST(LowRank, OtherTypesAreRefused) {
    for (const ddp_dtype dtype : {DDP_I32, DDP_C64})
        EXPECT_THROW(cpu::low_rank_project({nullptr, dtype, nullptr, 0, 0}, {}, {}, 1), Error);
}

}  // namespace
}  // namespace libddp
