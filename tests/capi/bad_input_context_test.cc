// context.h with arguments that make no sense, and with calls that come at the wrong time.
#include <limits>

#include "capi/bad_input.h"

namespace {

constexpr auto kInvalid = DDP_ERROR_INVALID_ARGUMENT;
constexpr auto kState = DDP_ERROR_INVALID_STATE;

// A context on a group of one rank.
class BadContext : public testing::Test {
protected:
    void SetUp() override {
        ddp_group_options options;
        ddp_group_options_init(&options);
        options.rank = 0;
        options.world_size = 1;
        ASSERT_EQ(ddp_group_create(&options, &group, nullptr), DDP_OK);
        ASSERT_EQ(ddp_context_create(group, nullptr, &context, nullptr), DDP_OK);
    }
    void TearDown() override {
        ddp_context_free(context);
        ddp_group_free(group);
    }

    ddp_param_desc desc(const char* name, float* grad = nullptr) const {
        ddp_param_desc d;
        ddp_param_desc_init(&d);
        d.name = name;
        d.shape = shape;
        d.ndim = 1;
        d.grad = grad;
        return d;
    }
    void add(const char* name) {
        auto d = desc(name);
        ddp_param made = -1;
        ASSERT_EQ(ddp_register_param(context, &d, &made, nullptr), DDP_OK);
    }
    void commit() {
        add("a");
        add("b");
        ASSERT_EQ(ddp_commit(context, nullptr), DDP_OK);
    }
    auto register_with(std::function<void(ddp_param_desc&)> change) {
        return [this, change](ddp_error** e) {
            auto d = desc("p", x);
            d.data = y;
            change(d);
            return ddp_register_param(context, &d, &param, e);
        };
    }

    ddp_group* group = nullptr;
    ddp_context* context = nullptr;
    Untouched<ddp_param> param;
    Untouched<void*> view;
    const std::int64_t shape[2] = {4, 1};
    alignas(64) float x[8] = {}, y[8] = {};
};

TEST_F(BadContext, NullHandles) {
    ddp_context_options_init(nullptr);
    ddp_param_desc_init(nullptr);
    ddp_context_free(nullptr);
    EXPECT_EQ(ddp_layout_generation(nullptr), -1);
    EXPECT_EQ(ddp_context_param_count(nullptr), -1);
    EXPECT_EQ(ddp_context_bucket_count(nullptr), -1);
    EXPECT_EQ(ddp_context_param_bucket(nullptr, 0), -1);
    const auto d = desc("p");
    Untouched<ddp_context*> out;
    expect_refused({
        {"create", kInvalid, {"ddp_context_create", "group is NULL"}, [&](ddp_error** e) { return ddp_context_create(nullptr, nullptr, &out, e); }},
        {"abort", kInvalid, {"ddp_context_abort", "context is NULL"}, [&](ddp_error** e) { return ddp_context_abort(nullptr, "x", e); }},
        {"register_param", kInvalid, {"ddp_register_param", "context is NULL"}, [&](ddp_error** e) { return ddp_register_param(nullptr, &d, &param, e); }},
        {"register_buffer", kInvalid, {"ddp_register_buffer", "context is NULL"}, [&](ddp_error** e) { return ddp_register_buffer(nullptr, &d, e); }},
        {"commit", kInvalid, {"ddp_commit", "context is NULL"}, [&](ddp_error** e) { return ddp_commit(nullptr, e); }},
        {"grad_view", kInvalid, {"ddp_grad_view", "context is NULL"}, [&](ddp_error** e) { return ddp_grad_view(nullptr, 0, &view, e); }},
        {"find_param", kInvalid, {"ddp_context_find_param", "context is NULL"}, [&](ddp_error** e) { return ddp_context_find_param(nullptr, "p", &param, e); }},
        {"step_begin", kInvalid, {"ddp_step_begin", "context is NULL"}, [&](ddp_error** e) { return ddp_step_begin(nullptr, e); }},
        {"set_sync", kInvalid, {"ddp_set_sync", "context is NULL"}, [&](ddp_error** e) { return ddp_set_sync(nullptr, 1, e); }},
        {"grad_ready", kInvalid, {"ddp_grad_ready", "context is NULL"}, [&](ddp_error** e) { return ddp_grad_ready(nullptr, 0, e); }},
        {"finalize", kInvalid, {"ddp_finalize", "context is NULL"}, [&](ddp_error** e) { return ddp_finalize(nullptr, e); }},
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
        {"no output", kInvalid, {"context is NULL"}, [&](ddp_error** e) { return ddp_context_create(group, &good, nullptr, e); }},
        {"reduction", kInvalid, {"reduction 3"}, [&](ddp_error** e) { return ddp_context_create(group, &bad_reduction, &out, e); }},
        {"flags", DDP_ERROR_UNSUPPORTED, {"flags", "0x40000000"}, [&](ddp_error** e) { return ddp_context_create(group, &bad_flags, &out, e); }},
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
    static const std::int64_t negative[] = {2, -1}, huge[] = {INT64_MAX, 2}, huge_bytes[] = {INT64_MAX};
    const auto d = desc("p");
    expect_refused({
        {"no desc", kInvalid, {"desc is NULL"}, [&](ddp_error** e) { return ddp_register_param(context, nullptr, &param, e); }},
        {"no output", kInvalid, {"param is NULL"}, [&](ddp_error** e) { return ddp_register_param(context, &d, nullptr, e); }},
        {"no name", kInvalid, {"name is NULL"}, register_with([](auto& p) { p.name = nullptr; })},
        {"empty name", kInvalid, {"name is empty"}, register_with([](auto& p) { p.name = ""; })},
        {"long name", kInvalid, {"name has 1025 bytes"}, register_with([&](auto& p) { p.name = long_name.c_str(); })},
        {"no shape", kInvalid, {"shape is NULL"}, register_with([](auto& p) { p.shape = nullptr; })},
        {"ndim -1", kInvalid, {"'p'", "ndim is -1"}, register_with([](auto& p) { p.ndim = -1; })},
        {"ndim 17", kInvalid, {"'p'", "ndim is 17"}, register_with([&](auto& p) { p.ndim = 17, p.shape = many.data(); })},
        {"ndim 10^6", kInvalid, {"'p'", "ndim is 1000000"}, register_with([](auto& p) { p.ndim = 1'000'000; })},
        {"negative extent", kInvalid, {"'p'", "shape[1] is -1"}, register_with([](auto& p) { p.ndim = 2, p.shape = negative; })},
        {"too many elements", kInvalid, {"'p'", "too large"}, register_with([](auto& p) { p.ndim = 2, p.shape = huge; })},
        {"too many bytes", kInvalid, {"'p'", "too large"}, register_with([](auto& p) { p.shape = huge_bytes; })},
        {"dtype 0", kInvalid, {"'p'", "dtype 0"}, register_with([](auto& p) { p.dtype = 0; })},
        {"dtype 10", kInvalid, {"'p'", "dtype 10"}, register_with([](auto& p) { p.dtype = 10; })},
        {"CUDA", DDP_ERROR_UNSUPPORTED, {"'p'", "device"}, register_with([](auto& p) { p.device = {DDP_DEVICE_CUDA, 0}; })},
        {"device kind 9", DDP_ERROR_UNSUPPORTED, {"'p'", "device"}, register_with([](auto& p) { p.device = {9, 0}; })},
        {"device index", DDP_ERROR_UNSUPPORTED, {"'p'", "device"}, register_with([](auto& p) { p.device = {DDP_DEVICE_CPU, 1}; })},
        {"crooked grad", kInvalid, {"'p'", "grad", "aligned"}, register_with([](auto& p) { p.grad = static_cast<char*>(p.grad) + 1; })},
        {"crooked data", kInvalid, {"'p'", "data", "aligned"}, register_with([](auto& p) { p.data = static_cast<char*>(p.data) + 2; })},
        {"flags", DDP_ERROR_UNSUPPORTED, {"flags", "0x8"}, register_with([](auto& p) { p.flags = 8; })},
        {"uses", kInvalid, {"'p'", "uses"}, register_with([](auto& p) { p.uses = 2'000'000; })},
        {"sparse scalar", kInvalid, {"'p'", "rows"}, register_with([](auto& p) { p.flags = DDP_PARAM_SPARSE, p.ndim = 0, p.grad = nullptr; })},
        {"sparse with grad", kInvalid, {"'p'", "grad"}, register_with([](auto& p) { p.flags = DDP_PARAM_SPARSE; })},
    });
    EXPECT_EQ(ddp_context_param_count(context), 0) << "a refused parameter was kept";
    int turn = 0;
    check_struct_size(d, "desc", [&](const ddp_param_desc* given, ddp_error** e) {
        Newer<ddp_param_desc> copy(*given);
        std::memcpy(static_cast<void*>(&copy), given, std::max(given->struct_size, sizeof(ddp_param_desc)));
        const std::string name = std::to_string(turn++);  // unique, so that only struct_size matters
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
        {"name", DDP_ERROR_ALREADY_EXISTS, {"'p'", "unique"}, register_with([this](auto& p) { p.grad = y; })},
        {"memory", DDP_ERROR_ALREADY_EXISTS, {"'q'", "grad", "'p'"}, register_with([](auto& p) { p.name = "q"; })},
        {"part of the memory", DDP_ERROR_ALREADY_EXISTS, {"'q'", "'p'"}, register_with([this](auto& p) { p.name = "q", p.grad = x + 3; })},
    });
    EXPECT_EQ(ddp_context_param_count(context), 1);
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
        {"no desc", kInvalid, {"desc is NULL"}, [&](ddp_error** e) { return ddp_register_buffer(context, nullptr, e); }},
        {"grad", kInvalid, {"'running'", "grad"}, with([this](auto& d) { d.grad = x; })},
        {"no data", kInvalid, {"'running'", "data"}, with([](auto& d) { d.data = nullptr; })},
        {"dtype", kInvalid, {"'running'", "dtype 99"}, with([](auto& d) { d.dtype = 99; })},
        {"flags", DDP_ERROR_UNSUPPORTED, {"flags"}, with([](auto& d) { d.flags = 4; })},
    });
    add("p");
    expect_refused({{"a parameter's name", DDP_ERROR_ALREADY_EXISTS, {"'p'"}, with([](auto& d) { d.name = "p"; })}});
    expect_accepted(with([](auto&) {}));
    expect_refused({
        {"twice", DDP_ERROR_ALREADY_EXISTS, {"'running'"}, with([](auto&) {})},
        {"a buffer is no parameter", DDP_ERROR_NOT_FOUND, {"'running'"}, [&](ddp_error** e) { return ddp_context_find_param(context, "running", &param, e); }},
    });
}

TEST_F(BadContext, BeforeCommit) {
    expect_refused({
        {"commit without parameters", kState, {"no parameter"}, [&](ddp_error** e) { return ddp_commit(context, e); }},
        {"grad_view", kState, {"ddp_grad_view", "ddp_commit"}, [&](ddp_error** e) { return ddp_grad_view(context, 0, &view, e); }},
        {"grad_ready", kState, {"ddp_grad_ready", "ddp_commit"}, [&](ddp_error** e) { return ddp_grad_ready(context, 0, e); }},
        {"step_begin", kState, {"ddp_step_begin", "ddp_commit"}, [&](ddp_error** e) { return ddp_step_begin(context, e); }},
        {"finalize", kState, {"ddp_finalize", "ddp_commit"}, [&](ddp_error** e) { return ddp_finalize(context, e); }},
        {"find: no name", kInvalid, {"name is NULL"}, [&](ddp_error** e) { return ddp_context_find_param(context, nullptr, &param, e); }},
        {"find: no output", kInvalid, {"param is NULL"}, [&](ddp_error** e) { return ddp_context_find_param(context, "a", nullptr, e); }},
        {"find: unknown", DDP_ERROR_NOT_FOUND, {"'a'"}, [&](ddp_error** e) { return ddp_context_find_param(context, "a", &param, e); }},
    });
    EXPECT_EQ(ddp_context_bucket_count(context), -1);
    EXPECT_EQ(ddp_context_param_bucket(context, 0), -1);
    expect_accepted([&](ddp_error** e) { return ddp_set_sync(context, 1, e); });
}

TEST_F(BadContext, AfterCommit) {
    commit();
    auto buffer = desc("c");
    buffer.data = y;
    expect_refused({
        {"commit again", kState, {"ddp_commit", "committed already"}, [&](ddp_error** e) { return ddp_commit(context, e); }},
        {"register_param", kState, {"ddp_register_param"}, register_with([](auto&) {})},
        {"register_buffer", kState, {"ddp_register_buffer"}, [&](ddp_error** e) { return ddp_register_buffer(context, &buffer, e); }},
        {"grad_view: -1", kInvalid, {"parameter -1", "there are 2"}, [&](ddp_error** e) { return ddp_grad_view(context, -1, &view, e); }},
        {"grad_view: 2", kInvalid, {"parameter 2"}, [&](ddp_error** e) { return ddp_grad_view(context, 2, &view, e); }},
        {"grad_view: 10^6", kInvalid, {"parameter 1000000"}, [&](ddp_error** e) { return ddp_grad_view(context, 1'000'000, &view, e); }},
        {"grad_view: no output", kInvalid, {"view is NULL"}, [&](ddp_error** e) { return ddp_grad_view(context, 0, nullptr, e); }},
        {"grad_ready: -1", kInvalid, {"parameter -1"}, [&](ddp_error** e) { return ddp_grad_ready(context, -1, e); }},
        {"grad_ready: 2", kInvalid, {"parameter 2"}, [&](ddp_error** e) { return ddp_grad_ready(context, 2, e); }},
        {"grad_ready: 10^6", kInvalid, {"parameter 1000000"}, [&](ddp_error** e) { return ddp_grad_ready(context, 1'000'000, e); }},
    });
    for (ddp_param unknown : {-1, 2, 1'000'000}) EXPECT_EQ(ddp_context_param_bucket(context, unknown), -1);
    expect_accepted([&](ddp_error** e) { return ddp_set_sync(context, 1, e); });  // still idle: nothing above began a step
}

TEST_F(BadContext, InTheMiddleOfAStep) {
    commit();
    ASSERT_EQ(ddp_grad_ready(context, 1, nullptr), DDP_OK);
    auto hook = [](void*, ddp_group*, ddp_bucket*, ddp_work**, ddp_error**) -> ddp_status { return DDP_OK; };
    static int destroyed;
    destroyed = 0;
    auto destroy = [](void*) { ++destroyed; };
    expect_refused({
        {"ready twice", kState, {"'b'", "twice", "step 0"}, [&](ddp_error** e) { return ddp_grad_ready(context, 1, e); }},
        {"set_sync", kState, {"ddp_set_sync", "step 0"}, [&](ddp_error** e) { return ddp_set_sync(context, 0, e); }},
        {"step_begin", kState, {"ddp_step_begin", "step 0"}, [&](ddp_error** e) { return ddp_step_begin(context, e); }},
        {"set_comm_hook", kState, {"ddp_set_comm_hook", "step 0"}, [&](ddp_error** e) { return ddp_set_comm_hook(context, hook, nullptr, destroy, e); }},
    });
    EXPECT_EQ(destroyed, 0) << "user data changes hands on success only";
    expect_accepted([&](ddp_error** e) { return ddp_grad_ready(context, 0, e); });
    expect_accepted([&](ddp_error** e) { return ddp_finalize(context, e); });
    expect_accepted([&](ddp_error** e) { return ddp_set_sync(context, 0, e); });
}

TEST_F(BadContext, AMissingGradientBreaksTheContextForGood) {
    commit();
    ASSERT_EQ(ddp_grad_ready(context, 1, nullptr), DDP_OK);
    ddp_error* error = nullptr;
    EXPECT_EQ(ddp_finalize(context, &error), DDP_ERROR_MISSING_GRADIENT);
    EXPECT_EQ(ddp_error_param(error), 0);
    EXPECT_EQ(ddp_error_step(error), 0);
    EXPECT_THAT(take_message(error), testing::HasSubstr("'a'"));
    const std::vector<std::string> named{"'a'"};
    const ddp_status broken = DDP_ERROR_MISSING_GRADIENT;
    expect_refused({
        {"grad_ready", broken, named, [&](ddp_error** e) { return ddp_grad_ready(context, 0, e); }},
        {"finalize", broken, named, [&](ddp_error** e) { return ddp_finalize(context, e); }},
        {"step_begin", broken, named, [&](ddp_error** e) { return ddp_step_begin(context, e); }},
    });
}

TEST_F(BadContext, AContextAbortNeedsNoReason) {
    commit();
    expect_accepted([&](ddp_error** e) { return ddp_context_abort(context, nullptr, e); });
    expect_refused({{"finalize", DDP_ERROR_ABORTED, {"ddp_context_abort"}, [&](ddp_error** e) { return ddp_finalize(context, e); }}});
}

}  // namespace
