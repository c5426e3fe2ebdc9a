// plan.h, overlap.h and stats.h with arguments that make no sense, and with calls that come at the
// wrong time.
#include <cstdlib>

#include "capi/lone_context.h"
#include "ddp/ddp.hpp"
#include "support/model.h"

namespace bad_input_plan_test {

class BadPlan : public LoneContext {
protected:
    // a, b: f32; d: f64; s: sparse; i: ignored.
    void commit_many() {
        add("a");
        add("b");
        auto other = desc("d");
        other.dtype = DDP_F64;
        ddp_param made = -1;
        ASSERT_EQ(ddp_register_param(context, &other, &made, nullptr), DDP_OK);
        add("s", DDP_PARAM_SPARSE);
        add("i", DDP_PARAM_IGNORED);
        commit({});
    }
    auto adopt(const char* text) { return calling(ddp_plan_adopt, context, text); }

    Untouched<char*> saved;
    Untouched<std::size_t> count;
    Untouched<std::uint64_t> bytes;
    Untouched<ddp_param> param;
};

std::string plan_of(const std::string& buckets) {
    return R"({"libddp_plan": 1, "buckets": )" + buckets + "}";
}

std::string nested(std::size_t depth, const std::string& inside = "") {
    return std::string(depth, '[') + inside + std::string(depth, ']');
}

TEST_F(BadPlan, NullHandles) {
    ddp_free(nullptr);
    ddp_stats stats;
    stats.struct_size = sizeof stats;
    expect_refused({
        null_argument("ddp_request_rebuild", "context", calling(ddp_request_rebuild, nullptr)),
        null_argument("ddp_plan_save", "context", calling(ddp_plan_save, nullptr, &saved)),
        null_argument("ddp_plan_save", "text", calling(ddp_plan_save, context, nullptr)),
        null_argument("ddp_plan_adopt", "context", calling(ddp_plan_adopt, nullptr, "{}")),
        null_argument("ddp_plan_adopt", "text", adopt(nullptr)),
        null_argument("ddp_finalize_async", "context", calling(ddp_finalize_async, nullptr)),
        null_argument("ddp_wait_param", "context", calling(ddp_wait_param, nullptr, 0)),
        null_argument("ddp_stats_get", "context", calling(ddp_stats_get, nullptr, &stats)),
        null_argument("ddp_stats_get", "stats", calling(ddp_stats_get, context, nullptr)),
        null_argument("ddp_stats_bucket_sizes", "context",
                      calling(ddp_stats_bucket_sizes, nullptr, 0, &bytes, 1, &count)),
        null_argument("ddp_stats_ready_order", "context",
                      calling(ddp_stats_ready_order, nullptr, &param, 1, &count)),
    });
}

TEST_F(BadPlan, BeforeCommit) {
    expect_refused({
        {"request_rebuild",
         kState,
         {"ddp_request_rebuild", "ddp_commit"},
         calling(ddp_request_rebuild, context)},
        {"plan_save",
         kState,
         {"ddp_plan_save", "ddp_commit"},
         calling(ddp_plan_save, context, &saved)},
        {"finalize_async",
         kState,
         {"ddp_finalize_async", "ddp_commit"},
         calling(ddp_finalize_async, context)},
        {"wait_param",
         kState,
         {"ddp_wait_param", "ddp_commit"},
         calling(ddp_wait_param, context, 0)},
        {"bucket_sizes",
         kState,
         {"ddp_stats_bucket_sizes", "ddp_commit"},
         calling(ddp_stats_bucket_sizes, context, 0, &bytes, 1, &count)},
        {"ready_order",
         kState,
         {"ddp_stats_ready_order", "ddp_commit"},
         calling(ddp_stats_ready_order, context, &param, 1, &count)},
    });
    commit();
    expect_good_step();
}

TEST_F(BadPlan, APlanThatIsReadByCommit) {
    expect_accepted(adopt("nonsense"));
    add("a");
    expect_refused({{"commit",
                     kInvalid,
                     {"ddp_plan_adopt", "ddp_commit", "nonsense"},
                     calling(ddp_commit, context)}});
    const std::string good = plan_of(R"([["a"], ["b"]])");
    expect_accepted(adopt(good.c_str()));
    commit({"b"});
    EXPECT_EQ(ddp_context_param_bucket(context, 1), 1);
    expect_good_step();
}

TEST_F(BadPlan, Texts) {
    commit_many();
    const std::vector<std::string> not_json{"ddp_plan_adopt", "text is no plan", "not JSON"};
    const std::vector<std::string> not_plan{"ddp_plan_adopt", "text is no plan", "libddp_plan"};
    const struct {
        const char* what;
        std::string text;
        std::vector<std::string> words;
        ddp_param param = -1;
    } cases[] = {
        {"empty", "", not_json},
        {"not JSON", "nonsense", {"not JSON", "\"nonsense\""}},
        {"half", R"({"libddp_plan": 1, "buckets": [["a")", not_json},
        {"two", plan_of("[]") + plan_of("[]"), not_json},
        {"not UTF-8", plan_of("[[\"\xff\"]]"), not_json},
        {"long", std::string(1 << 20, 'x'), {"not JSON", "xxx\"..."}},
        {"a number", "1", not_plan},
        {"a list", R"([["a"]])", not_plan},
        {"another object", "{}", not_plan},
        {"no buckets", R"({"libddp_plan": 1})", not_plan},
        {"buckets as an object", plan_of("{}"), not_plan},
        {"no version", R"({"buckets": [["a"]]})", not_plan},
        {"version 2",
         R"({"libddp_plan": 2, "buckets": []})",
         {"ddp_plan_adopt", "version 2", "version 1"}},
        {"version one", R"({"libddp_plan": "one", "buckets": []})", {"version \"one\""}},
        {"a bucket that is a name", plan_of(R"(["a"])"), {"bucket 0", "\"a\"", "list of names"}},
        {"an empty bucket", plan_of(R"([["a"], []])"), {"bucket 1", "an empty list"}},
        {"a name that is a number", plan_of("[[7]]"), {"names 7", "no parameter"}},
        {"an unknown name", plan_of(R"([["a", "x"]])"), {"names \"x\"", "no parameter"}},
        {"a long name",
         plan_of("[[\"" + std::string(5'000, 'y') + "\"]]"),
         {"yyy\"...", "no parameter"}},
        {"an ignored one",
         plan_of(R"([["i"]])"),
         {"names \"i\"", "no parameter", "that is reduced"}},
        {"one twice", plan_of(R"([["a"], ["b", "a"]])"), {"names 'a' twice"}, 0},
        {"one missing", plan_of(R"([["a"], ["d"], ["s"]])"), {"does not name 'b'"}, 1},
        {"no bucket", plan_of("[]"), {"does not name 'a'"}, 0},
        {"mixed types", plan_of(R"([["a", "d"]])"), {"bucket 0", "'a' (f32)", "'d' (f64)"}, 2},
        {"sparse and dense",
         plan_of(R"([["a"], ["b", "s"]])"),
         {"bucket 1", "sparse parameter 's'", "alone"},
         3},
        {"a deep version",
         R"({"libddp_plan": )" + nested(200'000) + R"(, "buckets": []})",
         {"version a list"}},
        {"a deep name", plan_of("[[" + nested(200'000) + "]]"), {"names a list", "no parameter"}},
        {"a deep bucket", plan_of(nested(200'000, "1")), {"names a list"}},
        {"only brackets", std::string(200'000, '['), not_json},
    };
    for (const auto& c : cases)
        expect_refused({{c.what, kInvalid, c.words, adopt(c.text.c_str()), c.param}});
    EXPECT_EQ(ddp_context_param_bucket(context, 2), 1) << "the old plan stays";
    expect_accepted(calling(ddp_grad_ready_sparse, context, 3, nullptr, nullptr, 0));
    for (ddp_param ready : {2, 1, 0}) expect_accepted(calling(ddp_grad_ready, context, ready));
    const std::string good = plan_of(R"([["a"], ["b"], ["s"], ["d"]])");
    expect_refused({{"in a step", kState, {"ddp_plan_adopt", "step 0"}, adopt(good.c_str())}});
    expect_accepted(calling(ddp_finalize, context));
    expect_accepted(adopt(good.c_str()));
    expect_accepted(calling(ddp_step_begin, context));
    EXPECT_EQ(ddp_context_param_bucket(context, 2), 3);
}

TEST_F(BadPlan, ANameThatJsonCannotHold) {
    commit({"a\xff"});
    expect_refused({{"save",
                     DDP_ERROR_UNSUPPORTED,
                     {"ddp_plan_save", "UTF-8"},
                     calling(ddp_plan_save, context, &saved)}});
    expect_good_step({0});
}

TEST_F(BadPlan, Buckets) {
    commit();
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_refused({{"rebuild",
                     kState,
                     {"ddp_request_rebuild", "step 0"},
                     calling(ddp_request_rebuild, context)}});
    expect_accepted(calling(ddp_grad_ready, context, 1));
    expect_accepted(calling(ddp_finalize, context));
    expect_good_step();
}

// Ranks that were given different plans are told so by ddp_commit, and may mend it.
TEST(BadPlans, OfDifferentRanks) {
    for (const char* wrong : {"nonsense", R"({"libddp_plan": 1, "buckets": [["p0", "p1"]]})"})
        on_ranks({2}, [wrong](int rank, ddp_group* group) {
            const char* right = R"({"libddp_plan": 1, "buckets": [["p0"], ["p1"]]})";
            Model model(group, {4, 4}, true);
            model.context.adopt_plan(rank == 0 ? right : wrong);
            const auto commit = calling(ddp_commit, model.context.get());
            expect_refused({{"commit", DDP_ERROR_MISMATCH, {"adopted plan"}, commit}});
            model.context.adopt_plan(right);
            expect_accepted(commit);
            EXPECT_EQ(ddp_context_bucket_count(model.context.get()), 2);
        });
}

TEST_F(BadPlan, Overlap) {
    commit();
    const std::string between = "between ddp_finalize_async and ddp_finalize";
    const auto wait = [this](ddp_param id) { return calling(ddp_wait_param, context, id); };
    expect_refused({{"idle", kState, {"ddp_wait_param", between}, wait(0)}});
    for (ddp_param ready : {1, 0}) {
        expect_accepted(calling(ddp_grad_ready, context, ready));
        expect_refused({{"filling", kState, {"ddp_wait_param", between}, wait(0)}});
    }
    expect_accepted(calling(ddp_finalize_async, context));
    const std::string async = "ddp_finalize_async";
    expect_refused({
        {"async twice", kState, {async, "end of step 0"}, calling(ddp_finalize_async, context)},
        {"ready", kState, {"ddp_grad_ready", "step 0", async}, calling(ddp_grad_ready, context, 0)},
        {"discard",
         kState,
         {"ddp_step_discard", "step 0", async},
         calling(ddp_step_discard, context)},
        {"begin", kState, {"ddp_step_begin", "step 0"}, calling(ddp_step_begin, context)},
        {"-1", kInvalid, {"ddp_wait_param", "parameter -1"}, wait(-1)},
        {"2", kInvalid, {"ddp_wait_param", "parameter 2", "there are 2"}, wait(2)},
        {"10^6", kInvalid, {"ddp_wait_param", "parameter 1000000"}, wait(1'000'000)},
    });
    for (ddp_param ready : {1, 0}) expect_accepted(wait(ready));
    expect_accepted(calling(ddp_finalize, context));
    expect_refused({{"after", kState, {"ddp_wait_param", between}, wait(0)}});
    expect_good_step();
}

TEST_F(BadPlan, AnUnsyncedStepThatEndsInTwoParts) {
    commit();
    expect_accepted(calling(ddp_set_sync, context, 0));
    expect_accepted(calling(ddp_finalize_async, context));
    const std::string async = "ddp_finalize_async";
    expect_refused({
        {"async twice", kState, {async, "end of step 0"}, calling(ddp_finalize_async, context)},
        {"discard", kState, {"ddp_step_discard", async}, calling(ddp_step_discard, context)},
    });
    expect_accepted(calling(ddp_finalize, context));
    expect_accepted(calling(ddp_set_sync, context, 1));
    expect_good_step();
}

TEST_F(BadPlan, ReducedCallbacks) {
    int destroyed = 0;
    const ddp_reduced_fn nothing = [](void*, ddp_param, int32_t, ddp_error**) -> ddp_status {
        return DDP_OK;
    };
    void (*const count_it)(void*) = [](void* counter) { ++*static_cast<int*>(counter); };
    auto install = [&](ddp_context* where) {
        return calling(ddp_set_reduced_callback, where, nothing, &destroyed, count_it);
    };
    expect_refused({null_argument("ddp_set_reduced_callback", "context", install(nullptr))});
    commit();
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_refused(
        {{"in a step", kState, {"ddp_set_reduced_callback", "step 0"}, install(context)}});
    EXPECT_EQ(destroyed, 0) << "user data changes hands on success only";
    expect_accepted(calling(ddp_grad_ready, context, 1));
    expect_accepted(calling(ddp_finalize, context));
    expect_accepted(install(context));
    expect_good_step();
    expect_accepted(calling(ddp_set_reduced_callback, context, nullptr, nullptr, nullptr));
    EXPECT_EQ(destroyed, 1);
    expect_good_step();
}

TEST_F(BadPlan, ACallbackThatFailsBreaksTheContext) {
    commit();
    const ddp_reduced_fn fail = [](void*, ddp_param, int32_t, ddp_error**) -> ddp_status {
        return 99;
    };
    expect_accepted(calling(ddp_set_reduced_callback, context, fail, nullptr, nullptr));
    for (ddp_param ready : {1, 0}) expect_accepted(calling(ddp_grad_ready, context, ready));
    expect_accepted(calling(ddp_finalize_async, context));
    expect_refused({{"wait",
                     DDP_ERROR_CALLBACK,
                     {"reduced callback", "bucket 0"},
                     calling(ddp_wait_param, context, 0)}});
}

TEST_F(BadPlan, Stats) {
    commit();
    ddp_stats stats;
    std::memset(&stats, 0x5a, sizeof stats);
    auto get = [&](std::size_t size) {
        return [&, size](ddp_error** e) {
            stats.struct_size = size;
            return ddp_stats_get(context, &stats, e);
        };
    };
    expect_refused({
        {"struct_size 0", kInvalid, {"ddp_stats_get", "stats->struct_size is 0"}, get(0)},
        {"struct_size 7", kInvalid, {"ddp_stats_get", "stats->struct_size is 7"}, get(7)},
        {"half a field", kInvalid, {"stats->struct_size is 12"}, get(12)},
        {"struct_size not set",
         kInvalid,
         {"stats->struct_size"},
         get(std::size_t{0x5a5a5a5a5a5a5a58})},
    });
    EXPECT_EQ(stats.steps, 0x5a5a5a5a5a5a5a5a) << "a refused call wrote";
    expect_accepted(get(offsetof(ddp_stats, synced_steps)));
    EXPECT_EQ(stats.steps, 0);
    EXPECT_EQ(stats.synced_steps, 0x5a5a5a5a5a5a5a5a) << "beyond what the caller knows";
    Newer<ddp_stats> newer(stats);
    newer.known.struct_size = sizeof newer;
    newer.tail[0] = 0x5a;
    expect_accepted(calling(ddp_stats_get, context, &newer.known));
    EXPECT_EQ(newer.known.param_count, 2);
    EXPECT_EQ(newer.tail[0], 0) << "a field that the library does not know";
}

TEST_F(BadPlan, Lists) {
    commit();
    expect_good_step();
    std::uint64_t size = 0;
    std::size_t found = 77;
    const auto sizes = [&](std::uint64_t* out, std::size_t capacity, std::size_t* number) {
        return calling(ddp_stats_bucket_sizes, context, 0, out, capacity, number);
    };
    const auto order = [&](ddp_param* out, std::size_t capacity, std::size_t* number) {
        return calling(ddp_stats_ready_order, context, out, capacity, number);
    };
    expect_refused({
        {"no count",
         kInvalid,
         {"ddp_stats_bucket_sizes", "count is NULL"},
         sizes(&bytes, 1, nullptr)},
        {"no bytes",
         kInvalid,
         {"ddp_stats_bucket_sizes", "bytes is NULL"},
         sizes(nullptr, 1, &count)},
        {"no count",
         kInvalid,
         {"ddp_stats_ready_order", "count is NULL"},
         order(&param, 1, nullptr)},
        {"no params",
         kInvalid,
         {"ddp_stats_ready_order", "params is NULL"},
         order(nullptr, 1, &count)},
    });
    expect_accepted(sizes(&bytes, 0, &found));
    EXPECT_EQ(found, 1u);
    expect_accepted(sizes(&size, SIZE_MAX, &found));
    EXPECT_EQ(size, 32u);
    expect_accepted(order(nullptr, 0, &found));
    EXPECT_EQ(found, 2u);
    ddp_param first[2] = {-7, -7};
    expect_accepted(order(first, 1, &found));
    EXPECT_EQ(first[0], 1);
    EXPECT_EQ(first[1], -7) << "beyond the capacity";
}

}  // namespace bad_input_plan_test
