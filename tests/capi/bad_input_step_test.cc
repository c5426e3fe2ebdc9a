// The functions of context.h beside plain steps, with arguments that make no sense: sparse
// gradients, discarded steps, another group.
#include "capi/lone_context.h"
#include "ddp/ddp.hpp"
#include "support/model.h"

namespace bad_input_step_test {

class BadStep : public LoneContext {
protected:
    // 0: dense, 1: sparse with four rows of one element.
    void commit_sparse() {
        add("dense");
        add("rows", DDP_PARAM_SPARSE);
        commit({});
    }
    auto give(ddp_param param, const std::int64_t* rows, const void* given, std::size_t count) {
        return calling(ddp_grad_ready_sparse, context, param, rows, given, count);
    }
    auto ask(ddp_param param) {
        return calling(ddp_sparse_gradient, context, param, &rows_out, &values_out, &count_out);
    }
    void expect_good_sparse_step() {
        expect_accepted(give(1, indices, values, 2));
        expect_good_step({0});
    }

    const std::int64_t indices[2] = {3, 1};
    const float values[2] = {30, 10};
    Untouched<const std::int64_t*> rows_out;
    Untouched<const void*> values_out;
    Untouched<std::size_t> count_out;
};

TEST_F(BadStep, NullHandles) {
    expect_refused({
        null_argument("ddp_grad_ready_sparse", "context",
                      calling(ddp_grad_ready_sparse, nullptr, 0, indices, values, 2)),
        null_argument("ddp_sparse_gradient", "context",
                      calling(ddp_sparse_gradient, nullptr, 0, &rows_out, &values_out, &count_out)),
        null_argument("ddp_step_discard", "context", calling(ddp_step_discard, nullptr)),
        null_argument("ddp_context_set_group", "context",
                      calling(ddp_context_set_group, nullptr, group)),
    });
}

TEST_F(BadStep, BeforeCommit) {
    expect_refused({
        {"ready", kState, {"ddp_grad_ready_sparse", "ddp_commit"}, give(0, indices, values, 2)},
        {"gradient", kState, {"ddp_sparse_gradient", "ddp_commit"}, ask(0)},
        {"discard", kState, {"ddp_step_discard", "ddp_commit"}, calling(ddp_step_discard, context)},
        {"set_group",
         kState,
         {"ddp_context_set_group", "ddp_commit"},
         calling(ddp_context_set_group, context, group)},
    });
    commit();
    expect_good_step();
}

TEST_F(BadStep, SparseGradients) {
    commit_sparse();
    static const std::int64_t below[] = {0, -1}, above[] = {4}, far[] = {INT64_MAX};
    const std::string call = "ddp_grad_ready_sparse";
    expect_refused({
        {"no indices", kInvalid, {call, "indices is NULL"}, give(1, nullptr, values, 2)},
        {"no values", kInvalid, {call, "values is NULL"}, give(1, indices, nullptr, 2)},
        {"-1", kInvalid, {call, "parameter -1", "there are 2"}, give(-1, indices, values, 2)},
        {"2", kInvalid, {call, "parameter 2"}, give(2, indices, values, 2)},
        {"10^6", kInvalid, {call, "parameter 1000000"}, give(1'000'000, indices, values, 2)},
        {"dense", kInvalid, {call, "'dense'", "DDP_PARAM_SPARSE"}, give(0, indices, values, 2), 0},
        {"row -1",
         kInvalid,
         {call, "'rows'", "indices[1] is -1", "4 rows"},
         give(1, below, values, 2),
         1},
        {"row 4",
         kInvalid,
         {call, "'rows'", "indices[0] is 4", "4 rows"},
         give(1, above, values, 1)},
        {"a far row",
         kInvalid,
         {call, "indices[0] is 9223372036854775807"},
         give(1, far, values, 1)},
        {"as dense",
         kInvalid,
         {"'rows'", "ddp_grad_ready_sparse"},
         calling(ddp_grad_ready, context, 1),
         1},
        {"gradient: -1", kInvalid, {"ddp_sparse_gradient", "parameter -1"}, ask(-1)},
        {"gradient: 2", kInvalid, {"ddp_sparse_gradient", "parameter 2"}, ask(2)},
        {"gradient: dense",
         kInvalid,
         {"ddp_sparse_gradient", "'dense'", "DDP_PARAM_SPARSE"},
         ask(0),
         0},
    });
    expect_accepted(calling(ddp_set_sync, context, 1));  // still idle: nothing above began a step
    expect_accepted(give(1, indices, values, 2));
    expect_refused({{"twice", kState, {call, "'rows'", "twice"}, give(1, indices, values, 2)}});
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_accepted(calling(ddp_finalize, context));
    const std::int64_t* rows = nullptr;
    const float* sums = nullptr;
    std::size_t count = 0;
    expect_accepted([&](ddp_error** e) {
        return ddp_sparse_gradient(context, 1, &rows, reinterpret_cast<const void**>(&sums), &count,
                                   e);
    });
    ASSERT_EQ(count, 2u) << "a refused call left rows behind";
    EXPECT_EQ(rows[0], 1);
    EXPECT_EQ(sums[0], 10);
    expect_accepted(calling(ddp_sparse_gradient, context, 1, nullptr, nullptr, nullptr));
}

TEST_F(BadStep, SparseAtTheWrongTime) {
    commit_sparse();
    expect_accepted(give(1, indices, values, 2));
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_accepted(calling(ddp_finalize_async, context));
    expect_refused(
        {{"late", kState, {"ddp_grad_ready_sparse", "step 0"}, give(1, indices, values, 2)}});
    expect_accepted(calling(ddp_finalize, context));
    static const ddp_param frozen[] = {1};
    expect_accepted(calling(ddp_set_frozen, context, frozen, 1, 1));
    const std::string names = "'rows' is frozen";
    expect_refused({{"frozen", DDP_ERROR_MISMATCH, {names}, give(1, indices, values, 2)}});
    expect_good_step({0});
}

TEST_F(BadStep, SparseInAStepThatHasNotBegun) {
    recreate(0, DDP_REDUCTION_WEIGHTED_MEAN);
    commit_sparse();
    expect_refused({{"ready",
                     kState,
                     {"ddp_grad_ready_sparse", "ddp_step_begin"},
                     give(1, indices, values, 2)}});
    expect_accepted(calling(ddp_step_begin, context));
    expect_accepted(give(1, nullptr, nullptr, 0));
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_accepted(calling(ddp_finalize, context));
    std::size_t count = 77;
    expect_accepted(calling(ddp_sparse_gradient, context, 1, nullptr, nullptr, &count));
    EXPECT_EQ(count, 0u) << "a refused call left rows behind";
}

TEST_F(BadStep, ADiscardOfNothing) {
    commit();
    expect_accepted(calling(ddp_step_discard, context));
    expect_accepted(calling(ddp_step_discard, context));
    expect_accepted(calling(ddp_set_sync, context, 0));
    expect_accepted(calling(ddp_step_discard, context));
    expect_accepted(calling(ddp_set_sync, context, 1));
    expect_good_step();
}

TEST_F(BadStep, AnotherGroup) {
    commit();
    expect_refused({null_argument("ddp_context_set_group", "group",
                                  calling(ddp_context_set_group, context, nullptr))});
    ddp_group* other = nullptr;
    ASSERT_EQ(ddp_group_split(group, 0, 0, &other, nullptr), DDP_OK);
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_refused({{"in a step",
                     kState,
                     {"ddp_context_set_group", "step 0"},
                     calling(ddp_context_set_group, context, other)}});
    expect_accepted(calling(ddp_grad_ready, context, 1));
    expect_accepted(calling(ddp_finalize, context));
    expect_accepted(calling(ddp_group_abort, other, "not usable"));
    expect_refused({{"a broken group",
                     DDP_ERROR_ABORTED,
                     {"not usable"},
                     calling(ddp_context_set_group, context, other)}});
    ddp_group_free(other);
    expect_good_step();
    expect_accepted(calling(ddp_context_set_group, context, group));  // its own
    expect_good_step();
}

// A step that broke cannot leave its unsynced mode by itself: the next group must not inherit that.
TEST_F(BadStep, SyncIsChosenOnABrokenContext) {
    ddp_group* next = nullptr;
    ASSERT_EQ(ddp_group_split(group, 0, 0, &next, nullptr), DDP_OK);
    commit();
    expect_accepted(calling(ddp_set_sync, context, 0));
    expect_accepted(calling(ddp_grad_ready, context, 1));
    expect_accepted(calling(ddp_context_abort, context, "a test"));
    expect_accepted(calling(ddp_set_sync, context, 1));
    expect_accepted(calling(ddp_context_set_group, context, next));
    ddp_group_free(next);
    expect_good_step();
    ddp_stats stats;
    stats.struct_size = sizeof stats;
    expect_accepted(calling(ddp_stats_get, context, &stats));
    EXPECT_EQ(stats.synced_steps, 1);
}

TEST(BadGroups, ADifferentModelIsNamedAndTheOldGroupStays) {
    on_ranks({2}, [](int rank, ddp_group* group) {
        ddp_group* alone = nullptr;
        ASSERT_EQ(ddp_group_split(group, rank, 0, &alone, nullptr), DDP_OK);
        {
            Model model(alone, {4, rank == 0 ? 4 : 5}, true);
            model.context.commit();
            const auto move = calling(ddp_context_set_group, model.context.get(), group);
            expect_refused(
                {{"set_group", DDP_ERROR_MISMATCH, {"'p1' f32[4]", "'p1' f32[5]"}, move}});
            model.fill(0, 2);
            for (ddp_param param : {1, 0}) model.context.grad_ready(param);
            model.context.finalize();
            EXPECT_TRUE(model.holds(0, 2));
        }
        ddp_group_free(alone);
    });
}

}  // namespace bad_input_step_test
