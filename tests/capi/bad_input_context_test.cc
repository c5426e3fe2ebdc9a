// context.h with arguments that make no sense, and with calls that come at the wrong time.
#include <limits>

#include "capi/lone_context.h"

namespace bad_input_context_test {

class BadContext : public LoneContext {
protected:
    auto register_with(std::function<void(ddp_param_desc&)> change) {
        return [this, change](ddp_error** e) {
            auto d = desc("p", x);
            d.data = y;
            change(d);
            return ddp_register_param(context, &d, &param, e);
        };
    }

    Untouched<ddp_param> param;
    Untouched<void*> view;
    Untouched<ddp_layout*> layout;
    alignas(64) float x[8] = {}, y[8] = {};
};

TEST_F(BadContext, NullHandles) {
    ddp_context_options_init(nullptr);
    ddp_param_desc_init(nullptr);
    ddp_context_free(nullptr);
    ddp_layout_free(nullptr);
    EXPECT_EQ(ddp_layout_generation(nullptr), -1);
    EXPECT_EQ(ddp_context_bucket_count(nullptr), -1);
    EXPECT_EQ(ddp_context_param_bucket(nullptr, 0), -1);
    const auto d = desc("p");
    Untouched<ddp_context*> out;
    expect_refused({
        null_argument("ddp_context_create", "group",
                      calling(ddp_context_create, nullptr, nullptr, &out)),
        null_argument("ddp_context_abort", "context", calling(ddp_context_abort, nullptr, "x")),
        null_argument("ddp_register_param", "context",
                      calling(ddp_register_param, nullptr, &d, &param)),
        null_argument("ddp_register_buffer", "context", calling(ddp_register_buffer, nullptr, &d)),
        null_argument("ddp_commit", "context", calling(ddp_commit, nullptr)),
        null_argument("ddp_grad_view", "context", calling(ddp_grad_view, nullptr, 0, &view)),
        null_argument("ddp_layout_hold", "context", calling(ddp_layout_hold, nullptr, &layout)),
        null_argument("ddp_step_begin", "context", calling(ddp_step_begin, nullptr)),
        null_argument("ddp_set_sync", "context", calling(ddp_set_sync, nullptr, 1)),
        null_argument("ddp_grad_ready", "context", calling(ddp_grad_ready, nullptr, 0)),
        null_argument("ddp_finalize", "context", calling(ddp_finalize, nullptr)),
    });
}

TEST_F(BadContext, Create) {
    ddp_context_options good;
    ddp_context_options_init(&good);
    auto bad_reduction = good, bad_flags = good;
    bad_reduction.reduction = 3;
    bad_flags.flags = 1u << 30;
    Untouched<ddp_context*> out;
    expect_refused({
        {"no output",
         kInvalid,
         {"context is NULL"},
         calling(ddp_context_create, group, &good, nullptr)},
        {"reduction",
         kInvalid,
         {"reduction 3"},
         calling(ddp_context_create, group, &bad_reduction, &out)},
        {"flags",
         DDP_ERROR_UNSUPPORTED,
         {"flags", "0x40000000"},
         calling(ddp_context_create, group, &bad_flags, &out)},
    });
    auto create = [&](const ddp_context_options* options, ddp_error** e) {
        ddp_context* made = nullptr;
        const ddp_status status = ddp_context_create(group, options, &made, e);
        ddp_context_free(made);
        return status;
    };
    check_struct_size(good, "options", create);
    auto older = bad_reduction;
    older.struct_size = offsetof(ddp_context_options, reduction);
    expect_accepted([&](ddp_error** e) { return create(&older, e); });
}

TEST_F(BadContext, OptionsThatMakeNoSense) {
    static const std::uint64_t caps[] = {8, 0};
    Untouched<ddp_context*> out;
    auto with = [&](std::function<void(ddp_context_options&)> change) {
        return [this, change, &out](ddp_error** e) {
            ddp_context_options options;
            ddp_context_options_init(&options);
            change(options);
            return ddp_context_create(group, &options, &out, e);
        };
    };
    auto with_caps = [&](const std::uint64_t* given, std::uint64_t count) {
        return with([=](auto& o) { o.bucket_caps = given, o.bucket_cap_count = count; });
    };
    auto with_flags = [&](std::uint32_t flags, ddp_reduction reduction = DDP_REDUCTION_MEAN) {
        return with([=](auto& o) { o.flags = flags, o.reduction = reduction; });
    };
    const std::string lonely_keep =
        "KEEP_LOCAL_UNUSED needs DDP_CONTEXT_FIND_UNUSED or DDP_CONTEXT_STATIC_GRAPH";
    const std::string lonely_skip = "SKIP_UNUSED_BUCKETS needs DDP_CONTEXT_FIND_UNUSED";
    const std::uint32_t skip = DDP_CONTEXT_SKIP_UNUSED_BUCKETS;
    const std::uint32_t both = DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_STATIC_GRAPH;
    const std::uint32_t divide = DDP_CONTEXT_DIVIDE_BY_PRESENT;
    expect_refused({
        {"interval", kInvalid, {"rebuild_interval is -1"}, with([](auto& o) {
             o.rebuild_interval = -1;
         })},
        {"no caps", kInvalid, {"ddp_context_create", "bucket_caps is NULL"}, with_caps(nullptr, 2)},
        {"a cap of 0", kInvalid, {"bucket_caps[1] is 0"}, with_caps(caps, 2)},
        {"endless caps",
         kInvalid,
         {"bucket_cap_count is 18446744073709551615"},
         with_caps(caps, UINT64_MAX)},
        {"reduction -1", kInvalid, {"reduction -1"}, with_flags(0, -1)},
        {"keep",
         kInvalid,
         {"ddp_context_create", "flags", lonely_keep},
         with_flags(DDP_CONTEXT_KEEP_LOCAL_UNUSED)},
        {"accumulate",
         kInvalid,
         {"ddp_context_create", "flags", "ACCUMULATE needs DDP_CONTEXT_FIND_UNUSED"},
         with_flags(DDP_CONTEXT_ACCUMULATE)},
        {"skip", kInvalid, {"flags", lonely_skip}, with_flags(skip)},
        {"skip, static",
         kInvalid,
         {"flags", lonely_skip},
         with_flags(skip | DDP_CONTEXT_STATIC_GRAPH)},
        {"find, static",
         kInvalid,
         {"flags", "FIND_UNUSED", "STATIC_GRAPH", "exclude"},
         with_flags(both)},
        {"divide",
         kInvalid,
         {"flags", "DIVIDE_BY_PRESENT needs DDP_CONTEXT_JOIN"},
         with_flags(divide)},
        {"stop",
         kInvalid,
         {"STOP_AT_FIRST_JOIN needs DDP_CONTEXT_JOIN"},
         with_flags(DDP_CONTEXT_STOP_AT_FIRST_JOIN)},
        {"autotune a list", kInvalid, {"DDP_CONTEXT_AUTOTUNE", "bucket_caps"}, with([&](auto& o) {
             o.flags = DDP_CONTEXT_AUTOTUNE, o.bucket_caps = caps, o.bucket_cap_count = 2;
         })},
        {"autotune a fixed plan",
         kInvalid,
         {"DDP_CONTEXT_AUTOTUNE", "DDP_CONTEXT_NO_REBUILD"},
         with_flags(DDP_CONTEXT_AUTOTUNE | DDP_CONTEXT_NO_REBUILD)},
        {"divide a sum",
         kInvalid,
         {"DDP_CONTEXT_DIVIDE_BY_PRESENT", "DDP_REDUCTION_SUM"},
         with_flags(divide | DDP_CONTEXT_JOIN, DDP_REDUCTION_SUM)},
    });
}

TEST_F(BadContext, EnormousCapsMeanOneBucket) {
    ddp_context_options options;
    ddp_context_options_init(&options);
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = UINT64_MAX;
    ddp_context* large = nullptr;
    ASSERT_EQ(ddp_context_create(group, &options, &large, nullptr), DDP_OK);
    std::swap(large, context);
    commit();
    EXPECT_EQ(ddp_context_bucket_count(context), 1);
    ddp_context_free(large);
}

TEST_F(BadContext, RegisterParam) {
    const std::string long_name(1025, 'n');
    const std::vector<std::int64_t> many(17, 1);
    static const std::int64_t negative[] = {2, -1}, huge[] = {INT64_MAX, 2},
                              huge_bytes[] = {INT64_MAX};
    const auto d = desc("p");
    expect_refused({
        {"no desc",
         kInvalid,
         {"desc is NULL"},
         calling(ddp_register_param, context, nullptr, &param)},
        {"no output",
         kInvalid,
         {"param is NULL"},
         calling(ddp_register_param, context, &d, nullptr)},
        {"no name", kInvalid, {"name is NULL"}, register_with([](auto& p) { p.name = nullptr; })},
        {"empty name", kInvalid, {"name is empty"}, register_with([](auto& p) { p.name = ""; })},
        {"long name", kInvalid, {"name has 1025 bytes"}, register_with([&](auto& p) {
             p.name = long_name.c_str();
         })},
        {"no shape", kInvalid, {"shape is NULL"}, register_with([](auto& p) {
             p.shape = nullptr;
         })},
        {"ndim -1", kInvalid, {"'p'", "ndim is -1"}, register_with([](auto& p) { p.ndim = -1; })},
        {"ndim 17", kInvalid, {"'p'", "ndim is 17"}, register_with([&](auto& p) {
             p.ndim = 17, p.shape = many.data();
         })},
        {"ndim 10^6", kInvalid, {"'p'", "ndim is 1000000"}, register_with([](auto& p) {
             p.ndim = 1'000'000;
         })},
        {"negative extent", kInvalid, {"'p'", "shape[1] is -1"}, register_with([](auto& p) {
             p.ndim = 2, p.shape = negative;
         })},
        {"too many elements", kInvalid, {"'p'", "too large"}, register_with([](auto& p) {
             p.ndim = 2, p.shape = huge;
         })},
        {"too many bytes", kInvalid, {"'p'", "too large"}, register_with([](auto& p) {
             p.shape = huge_bytes;
         })},
        {"dtype 0", kInvalid, {"'p'", "dtype 0"}, register_with([](auto& p) { p.dtype = 0; })},
        {"dtype 10", kInvalid, {"'p'", "dtype 10"}, register_with([](auto& p) { p.dtype = 10; })},
        {"device kind 9", DDP_ERROR_UNSUPPORTED, {"'p'", "device"}, register_with([](auto& p) {
             p.device = {9, 0};
         })},
        {"device index", DDP_ERROR_UNSUPPORTED, {"'p'", "device"}, register_with([](auto& p) {
             p.device = {DDP_DEVICE_CPU, 1};
         })},
        {"crooked grad", kInvalid, {"'p'", "grad", "aligned"}, register_with([](auto& p) {
             p.grad = static_cast<char*>(p.grad) + 1;
         })},
        {"crooked data", kInvalid, {"'p'", "data", "aligned"}, register_with([](auto& p) {
             p.data = static_cast<char*>(p.data) + 2;
         })},
        {"flags", DDP_ERROR_UNSUPPORTED, {"flags", "0x40000000"}, register_with([](auto& p) {
             p.flags = 1u << 30;
         })},
        {"uses", kInvalid, {"'p'", "uses is 2000000"}, register_with([](auto& p) {
             p.uses = 2'000'000;
         })},
        {"sparse, used twice", kInvalid, {"'p'", "uses is 2"}, register_with([](auto& p) {
             p.flags = DDP_PARAM_SPARSE, p.uses = 2, p.grad = nullptr;
         })},
        {"sparse scalar", kInvalid, {"'p'", "rows"}, register_with([](auto& p) {
             p.flags = DDP_PARAM_SPARSE, p.ndim = 0, p.grad = nullptr;
         })},
        {"sparse with grad", kInvalid, {"'p'", "grad"}, register_with([](auto& p) {
             p.flags = DDP_PARAM_SPARSE;
         })},
    });
    EXPECT_EQ(param_count(), 0) << "a refused parameter was kept";
    int turn = 0;
    check_struct_size(d, "desc", [&](const ddp_param_desc* given, ddp_error** e) {
        Newer<ddp_param_desc> copy(*given);
        const bool newer = given->struct_size == sizeof copy;
        std::memcpy(static_cast<void*>(&copy), given, newer ? sizeof copy : sizeof *given);
        // unique, so that only struct_size matters
        const std::string name = std::to_string(turn++);
        copy.known.name = name.c_str();
        ddp_param made = -1;
        return ddp_register_param(context, copy.get(), &made, e);
    });
}

TEST_F(BadContext, TheSameAgain) {
    ddp_param made = -1;
    auto first = desc("p", x);
    ASSERT_EQ(ddp_register_param(context, &first, &made, nullptr), DDP_OK);
    expect_refused({
        {"name", DDP_ERROR_ALREADY_EXISTS, {"'p'", "unique"}, register_with([this](auto& p) {
             p.grad = y;
         })},
        {"memory", DDP_ERROR_ALREADY_EXISTS, {"'q'", "grad", "'p'"}, register_with([](auto& p) {
             p.name = "q";
         })},
        {"part of the memory",
         DDP_ERROR_ALREADY_EXISTS,
         {"'q'", "'p'"},
         register_with([this](auto& p) { p.name = "q", p.grad = x + 3; })},
    });
    EXPECT_EQ(param_count(), 1);
}

TEST_F(BadContext, RegisterBuffer) {
    auto with = [&](std::function<void(ddp_param_desc&)> change) {
        return [this, change](ddp_error** e) {
            auto d = desc("running");
            d.data = y;
            change(d);
            return ddp_register_buffer(context, &d, e);
        };
    };
    expect_refused({
        {"no desc", kInvalid, {"desc is NULL"}, calling(ddp_register_buffer, context, nullptr)},
        {"grad", kInvalid, {"'running'", "grad"}, with([this](auto& d) { d.grad = x; })},
        {"no data", kInvalid, {"'running'", "data"}, with([](auto& d) { d.data = nullptr; })},
        {"dtype", kInvalid, {"'running'", "dtype 99"}, with([](auto& d) { d.dtype = 99; })},
        {"flags", DDP_ERROR_UNSUPPORTED, {"flags"}, with([](auto& d) { d.flags = 4; })},
        {"uses", kInvalid, {"'running'", "uses is 2"}, with([](auto& d) { d.uses = 2; })},
    });
    add("p");
    expect_refused({{"a parameter's name", DDP_ERROR_ALREADY_EXISTS, {"'p'"}, with([](auto& d) {
                         d.name = "p";
                     })}});
    expect_accepted(with([](auto&) {}));
    expect_refused({{"twice", DDP_ERROR_ALREADY_EXISTS, {"'running'"}, with([](auto&) {})}});
    EXPECT_EQ(param_count(), 1) << "a buffer is no parameter";
}

TEST_F(BadContext, BeforeCommit) {
    expect_refused({
        {"commit without parameters", kState, {"no parameter"}, calling(ddp_commit, context)},
        {"grad_view",
         kState,
         {"ddp_grad_view", "ddp_commit"},
         calling(ddp_grad_view, context, 0, &view)},
        {"layout_hold",
         kState,
         {"ddp_layout_hold", "ddp_commit"},
         calling(ddp_layout_hold, context, &layout)},
        {"grad_ready",
         kState,
         {"ddp_grad_ready", "ddp_commit"},
         calling(ddp_grad_ready, context, 0)},
        {"step_begin", kState, {"ddp_step_begin", "ddp_commit"}, calling(ddp_step_begin, context)},
        {"finalize", kState, {"ddp_finalize", "ddp_commit"}, calling(ddp_finalize, context)},
    });
    EXPECT_EQ(ddp_context_bucket_count(context), -1);
    EXPECT_EQ(ddp_context_param_bucket(context, 0), -1);
    expect_accepted(calling(ddp_set_sync, context, 1));
}

TEST_F(BadContext, AfterCommit) {
    commit();
    auto buffer = desc("c");
    buffer.data = y;
    expect_refused({
        {"commit again", kState, {"ddp_commit", "committed already"}, calling(ddp_commit, context)},
        {"register_param", kState, {"ddp_register_param"}, register_with([](auto&) {})},
        {"register_buffer",
         kState,
         {"ddp_register_buffer"},
         calling(ddp_register_buffer, context, &buffer)},
        {"grad_view: -1",
         kInvalid,
         {"parameter -1", "there are 2"},
         calling(ddp_grad_view, context, -1, &view)},
        {"grad_view: 2", kInvalid, {"parameter 2"}, calling(ddp_grad_view, context, 2, &view)},
        {"grad_view: 10^6",
         kInvalid,
         {"parameter 1000000"},
         calling(ddp_grad_view, context, 1'000'000, &view)},
        {"grad_view: no output",
         kInvalid,
         {"view is NULL"},
         calling(ddp_grad_view, context, 0, nullptr)},
        {"layout_hold: no output",
         kInvalid,
         {"layout is NULL"},
         calling(ddp_layout_hold, context, nullptr)},
        {"grad_ready: -1", kInvalid, {"parameter -1"}, calling(ddp_grad_ready, context, -1)},
        {"grad_ready: 2", kInvalid, {"parameter 2"}, calling(ddp_grad_ready, context, 2)},
        {"grad_ready: 10^6",
         kInvalid,
         {"parameter 1000000"},
         calling(ddp_grad_ready, context, 1'000'000)},
    });
    for (ddp_param unknown : {-1, 2, 1'000'000})
        EXPECT_EQ(ddp_context_param_bucket(context, unknown), -1);
    expect_accepted(calling(ddp_set_sync, context, 1));  // still idle: nothing above began a step
}

TEST_F(BadContext, NothingThatIsReduced) {
    add("ignored", DDP_PARAM_IGNORED);
    expect_refused({{"commit", kState, {"ddp_commit", "ignored"}, calling(ddp_commit, context)}});
    commit({"a"});
    expect_good_step({1});
}

TEST_F(BadContext, IntegersWhereFractionsAreNeeded) {
    for (bool weighted : {true, false}) {
        if (weighted)
            recreate(0, DDP_REDUCTION_WEIGHTED_MEAN);
        else
            recreate(DDP_CONTEXT_JOIN | DDP_CONTEXT_DIVIDE_BY_PRESENT);
        auto counter = desc("counter");
        counter.dtype = DDP_I32;
        ddp_param made = -1;
        ASSERT_EQ(ddp_register_param(context, &counter, &made, nullptr), DDP_OK);
        expect_refused(
            {{"commit",
              DDP_ERROR_UNSUPPORTED,
              {"ddp_commit", "'counter' is i32", weighted ? "WEIGHTED_MEAN" : "DIVIDE_BY_PRESENT"},
              calling(ddp_commit, context)}});
    }
}

TEST_F(BadContext, AGradientOfSeveralUses) {
    add("shared", 0, 2);
    commit({});
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_refused({{"third",
                     kState,
                     {"'shared'", "more than 2 times"},
                     calling(ddp_grad_ready, context, 0)}});
    expect_accepted(calling(ddp_finalize, context));
    expect_accepted(calling(ddp_grad_ready, context, 0));
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_finalize(context, &error), DDP_ERROR_MISSING_GRADIENT);
    const std::string message = take_message(error);
    EXPECT_THAT(message, testing::EndsWith("'shared' (1 of 2 times)")) << "it is used";
}

TEST_F(BadContext, InTheMiddleOfAStep) {
    commit();
    ASSERT_EQ(ddp_grad_ready(context, 1, nullptr), DDP_OK);
    auto hook = [](void*, ddp_group*, ddp_bucket*, ddp_work**, ddp_error**) -> ddp_status {
        return DDP_OK;
    };
    static int destroyed;
    destroyed = 0;
    auto destroy = [](void*) { ++destroyed; };
    expect_refused({
        {"ready twice", kState, {"'b'", "twice", "step 0"}, calling(ddp_grad_ready, context, 1)},
        {"set_sync", kState, {"ddp_set_sync", "step 0"}, calling(ddp_set_sync, context, 0)},
        {"step_begin", kState, {"ddp_step_begin", "step 0"}, calling(ddp_step_begin, context)},
        {"set_comm_hook",
         kState,
         {"ddp_set_comm_hook", "step 0"},
         calling(ddp_set_comm_hook, context, hook, nullptr, destroy)},
    });
    EXPECT_EQ(destroyed, 0) << "user data changes hands on success only";
    expect_accepted(calling(ddp_grad_ready, context, 0));
    expect_accepted(calling(ddp_finalize, context));
    expect_accepted(calling(ddp_set_sync, context, 0));
}

TEST_F(BadContext, AMissingGradientBreaksTheContextForGood) {
    commit();
    ASSERT_EQ(ddp_grad_ready(context, 1, nullptr), DDP_OK);
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_finalize(context, &error), DDP_ERROR_MISSING_GRADIENT);
    EXPECT_EQ(ddp_error_param(error), 0);
    EXPECT_EQ(ddp_error_step(error), 0);
    EXPECT_THAT(
        take_message(error),
        testing::EndsWith(
            "never announced with ddp_grad_ready: 'a'; freeze parameters that are not trained "
            "(ddp_set_frozen), and if a step may use some parameters only, create the context "
            "with DDP_CONTEXT_FIND_UNUSED"));
    const std::vector<std::string> named{"'a'"};
    const ddp_status broken = DDP_ERROR_MISSING_GRADIENT;
    expect_refused({
        {"grad_ready", broken, named, calling(ddp_grad_ready, context, 0)},
        {"finalize", broken, named, calling(ddp_finalize, context)},
        {"step_begin", broken, named, calling(ddp_step_begin, context)},
        {"finalize_async", broken, named, calling(ddp_finalize_async, context)},
        {"step_discard", broken, named, calling(ddp_step_discard, context)},
        {"set_frozen", broken, named, calling(ddp_set_frozen, context, nullptr, 0, 1)},
        {"request_rebuild", broken, named, calling(ddp_request_rebuild, context)},
    });
    expect_accepted(calling(ddp_set_sync, context, 1));  // for the group to come
}

TEST_F(BadContext, AContextAbortNeedsNoReason) {
    commit();
    expect_accepted(calling(ddp_context_abort, context, nullptr));
    expect_refused(
        {{"finalize", DDP_ERROR_ABORTED, {"ddp_context_abort"}, calling(ddp_finalize, context)}});
}

}  // namespace bad_input_context_test
