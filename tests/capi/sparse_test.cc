// Gradients that are sets of rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ddp/ddp.hpp"
#include "support/model.h"
#include "support/ranks.h"

namespace sparse_test {

constexpr std::int64_t kRows = 10, kWidth = 3;

struct Case {
    int world;
    const char* backend;
};

class SparseTest : public testing::TestWithParam<Case> {
protected:
    void run(const std::function<void(int rank, ddp::Context& context)>& body,
             std::uint32_t flags = 0) {
        on_ranks({GetParam().world, GetParam().backend}, [&](int rank, ddp_group* group) {
            BorrowedGroup borrowed(group);
            auto options = ddp::Context::defaults();
            options.flags = flags;
            options.bucket_cap_bytes = 16;
            ddp::Context context(borrowed, options);
            dense_[rank].assign(5, 0);
            context.add_param<float>("head", {5}, nullptr, dense_[rank].data());
            context.add_param<float>("embedding", {kRows, kWidth}, nullptr, nullptr,
                                     DDP_PARAM_SPARSE);
            context.commit();
            body(rank, context);
        });
    }
    int world() const { return GetParam().world; }
    std::map<int, std::vector<float>> dense_{{0, {}}, {1, {}}, {2, {}}, {3, {}}};
};

INSTANTIATE_TEST_SUITE_P(All, SparseTest,
                         testing::Values(Case{1, "threads"}, Case{2, "threads"},
                                         Case{3, "threads-plain"}, Case{4, "threads-single"},
                                         Case{3, "threads-caller"}, Case{3, "tcp"},
                                         Case{3, "shm"}));

// The rows that rank `rank` gives in a step: rank + 1 rows, one index twice.
std::vector<std::int64_t> rows_of(int rank, int step) {
    std::vector<std::int64_t> rows;
    for (int i = 0; i <= rank; ++i) rows.push_back((3 * rank + 2 * i + step) % kRows);
    rows.push_back(rows.front());
    return rows;
}
std::vector<float> values_of(int rank, int step) {
    std::vector<float> values(rows_of(rank, step).size() * kWidth);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(12 * (rank + 1) * static_cast<int>(i + 1) + step);
    return values;
}

using Dense = std::map<std::int64_t, std::vector<float>>;

void add(Dense& sum, int rank, int step) {
    const auto rows = rows_of(rank, step);
    const auto values = values_of(rank, step);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        auto& row = sum.try_emplace(rows[i], kWidth).first->second;
        for (std::size_t k = 0; k < kWidth; ++k) row[k] += values[i * kWidth + k];
    }
}

void expect_rows(ddp::Context& context, const Dense& expected, int world) {
    auto [rows, values] = context.sparse_gradient<float>(1);
    ASSERT_EQ(rows.size(), expected.size());
    std::size_t i = 0;
    for (const auto& [index, row] : expected) {
        EXPECT_EQ(rows[i], index);
        for (std::size_t k = 0; k < kWidth; ++k)
            EXPECT_FLOAT_EQ(values[i * kWidth + k], row[k] / static_cast<float>(world));
        ++i;
    }
}

TEST_P(SparseTest, TheUnionOfRowsIsExact) {
    run([&](int rank, ddp::Context& context) {
        EXPECT_TRUE(context.sparse_gradient<float>(1).first.empty());
        for (int step = 0; step < 4; ++step) {
            context.step_begin();
            dense_[rank].assign(5, static_cast<float>(rank));
            context.sparse_grad_ready(1, rows_of(rank, step), values_of(rank, step).data());
            context.grad_ready(0);
            context.finalize();
            Dense expected;
            for (int r = 0; r < world(); ++r) add(expected, r, step);
            expect_rows(context, expected, world());
            EXPECT_FLOAT_EQ(dense_[rank][0], static_cast<float>(world() - 1) / 2);
        }
    });
}

TEST_P(SparseTest, UnsyncedStepsAddRows) {
    run([&](int rank, ddp::Context& context) {
        context.set_sync(false);
        context.sparse_grad_ready(1, rows_of(rank, 0), values_of(rank, 0).data());
        context.grad_ready(0);
        context.finalize();
        context.set_sync(true);
        context.sparse_grad_ready(1, rows_of(rank, 1), values_of(rank, 1).data());
        context.grad_ready(0);
        context.finalize();
        Dense expected;
        for (int r = 0; r < world(); ++r) add(expected, r, 0), add(expected, r, 1);
        expect_rows(context, expected, world());
    });
}

TEST_P(SparseTest, ARankMayHaveNoRowsAndMayNotUseItAtAll) {
    run(
        [&](int rank, ddp::Context& context) {
            for (int step = 0; step < 3; ++step) {  // used by all, by the last rank only, by none
                if (step == 0 || (step == 1 && rank == world() - 1))
                    context.sparse_grad_ready(1,
                                              rank == 0 && world() > 1 ? std::vector<std::int64_t>{}
                                                                       : rows_of(rank, step),
                                              values_of(rank, step).data());
                context.grad_ready(0);
                context.finalize();
                Dense expected;
                for (int r = 0; r < world(); ++r)
                    if ((step == 0 && (r > 0 || world() == 1)) || (step == 1 && r == world() - 1)) {
                        add(expected, r, step);
                    }
                expect_rows(context, expected, world());
                EXPECT_EQ(context.used(1), step < 2);
            }
        },
        DDP_CONTEXT_FIND_UNUSED);
}

}  // namespace sparse_test
